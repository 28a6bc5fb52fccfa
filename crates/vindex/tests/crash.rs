//! Extraction that is killed, or that the system refuses, at any moment. The test starts itself as
//! a child process, which stops at a given look at its progress listener and is then killed with
//! SIGKILL: no destructor runs.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "helpers of tests act as tests do")]

mod support;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use larql_vindex::{ExtractOptions, NoProgress, Progress, Vindex, VindexError};
use support::{extract, model_dir, names, text};

const STALLED: &str = "stalled, waiting to be killed";
const DONE: &str = "done";

/// Stalls for ever at its `n`-th call.
struct StallAt {
    n: u64,
    calls: AtomicU64,
}

impl StallAt {
    fn call(&self) {
        if self.calls.fetch_add(1, Ordering::SeqCst) == self.n {
            println!("\n{STALLED}");
            loop {
                std::thread::park();
            }
        }
    }
}

impl Progress for StallAt {
    fn start(&self, _phase: &str, _total: u64, _unit: &str) {
        self.call();
    }
    fn advance(&self, _n: u64) {
        self.call();
    }
    fn finish(&self) {
        self.call();
    }
    fn cancelled(&self) -> bool {
        self.call();
        false
    }
}

fn options(force: bool) -> ExtractOptions {
    ExtractOptions {
        copy: true,
        split: true,
        feature_major_down: true,
        threads: Some(1),
        force,
        ..Default::default()
    }
}

/// The child's part: a test that does nothing unless it is started by the other ones.
#[test]
#[allow(clippy::disallowed_methods, reason = "how the parent speaks to this process")]
fn child_extracts() {
    let Ok(job) = std::env::var("LARQL_TEST_CHILD") else { return };
    let parts: Vec<&str> = job.split('\n').collect();
    let progress = StallAt { n: parts[2].parse().unwrap(), calls: AtomicU64::new(0) };
    let force = parts[3] == "force";
    match larql_vindex::extract(
        Path::new(parts[0]),
        Path::new(parts[1]),
        &options(force),
        &progress,
    ) {
        Ok(_) => println!("\n{DONE}"),
        Err(error) => println!("\n{error}"),
    }
}

fn child(model: &Path, target: &Path, n: u64, force: bool) -> Child {
    let how = if force { "force" } else { "" };
    let job = format!("{}\n{}\n{n}\n{how}", model.display(), target.display());
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_extracts", "--nocapture", "--test-threads=1"])
        .env("LARQL_TEST_CHILD", job)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Runs a child until it stalls, and kills it; `false` where it finished instead.
fn killed(model: &Path, target: &Path, n: u64, force: bool) -> bool {
    let mut child = child(model, target, n, force);
    let output = BufReader::new(child.stdout.take().unwrap());
    let outcome = output
        .lines()
        .map(Result::unwrap)
        .find(|line| line == STALLED || line == DONE)
        .expect("the child says how it ended");
    child.kill().unwrap();
    child.wait().unwrap();
    outcome == STALLED
}

#[test]
fn kill_during_any_write_leaves_the_destination_absent() {
    let (dir, model) = model_dir();
    let target = dir.path().join("tiny.vindex");
    let mut kills = 0;
    for n in 0.. {
        if !killed(&model, &target, n, false) {
            break;
        }
        kills += 1;
        assert!(!target.exists(), "killed at {n}");
        // One leftover: each run removes that of the one before.
        let left: Vec<String> =
            names(dir.path()).into_iter().filter(|name| name != "tiny.gguf").collect();
        assert_eq!(left.len(), 1, "killed at {n}: {left:?}");
        let leftover = dir.path().join(&left[0]);
        assert!(matches!(Vindex::open(&leftover), Err(VindexError::Unfinished { .. })));
    }
    assert!(kills > 30, "{kills}");
    assert_eq!(names(dir.path()), ["tiny.gguf", "tiny.vindex"]);
    Vindex::open(&target).unwrap();
}

#[test]
fn kill_during_a_replacement_leaves_the_old_version() {
    let (dir, model) = model_dir();
    let target = dir.path().join("tiny.vindex");
    extract(&model, &target, &ExtractOptions::default());
    let old = std::fs::read(target.join("index.json")).unwrap();
    let mut n = 0;
    while killed(&model, &target, n, true) {
        assert_eq!(std::fs::read(target.join("index.json")).unwrap(), old, "killed at {n}");
        Vindex::open(&target).unwrap();
        n += 5;
    }
    assert!(n > 30, "{n}");
    let new = Vindex::open(&target).unwrap();
    assert!(new.down_features(0).is_some());
}

#[test]
fn a_full_disk_is_an_error_that_leaves_nothing() {
    let (dir, model) = model_dir();
    let small = dir.path().join("small");
    std::fs::create_dir(&small).unwrap();
    let Some(_mounted) = Mounted::tmpfs(&small, "size=32k") else {
        eprintln!("skipped a_full_disk_is_an_error_that_leaves_nothing: cannot mount a tmpfs here");
        return;
    };
    let target = small.join("tiny.vindex");
    let error = text(larql_vindex::extract(&model, &target, &options(false), &NoProgress));
    assert!(error.contains("No space left"), "{error}");
    assert_eq!(names(&small), [""; 0]);
}

#[test]
fn another_file_system_gets_a_copy() {
    let (dir, model) = model_dir();
    let other = dir.path().join("other");
    std::fs::create_dir(&other).unwrap();
    let Some(_mounted) = Mounted::tmpfs(&other, "size=4m") else {
        eprintln!("skipped another_file_system_gets_a_copy: cannot mount a tmpfs here");
        return;
    };
    let target = other.join("tiny.vindex");
    extract(&model, &target, &ExtractOptions::default());
    let vindex = Vindex::open(&target).unwrap();
    assert_eq!(vindex.manifest().source.weights, larql_vindex::WeightsOrigin::Copied);
    assert!(vindex.manifest().files[0].modified.is_none());
}

#[test]
fn a_read_only_place_is_refused_with_its_path() {
    let (dir, model) = model_dir();
    let place = dir.path().join("readonly");
    std::fs::create_dir(&place).unwrap();
    let Some(_mounted) = Mounted::tmpfs(&place, "ro") else {
        eprintln!("skipped a_read_only_place_is_refused_with_its_path: cannot mount a tmpfs here");
        return;
    };
    let target = place.join("tiny.vindex");
    let error = text(larql_vindex::extract(&model, &target, &options(false), &NoProgress));
    assert!(error.contains("cannot write into") && error.contains("readonly"), "{error}");
}

#[test]
fn no_permission_is_refused_with_its_path() {
    use std::os::unix::fs::PermissionsExt;
    let (dir, model) = model_dir();
    let target = dir.path().join("tiny.vindex");
    extract(&model, &target, &ExtractOptions { copy: true, ..Default::default() });
    let weights = target.join("model.gguf");
    std::fs::set_permissions(&weights, std::fs::Permissions::from_mode(0o000)).unwrap();
    if std::fs::File::open(&weights).is_ok() {
        eprintln!("skipped no_permission_is_refused_with_its_path: this user may read everything");
        return;
    }
    let error = text(Vindex::open(&target));
    assert!(error.contains("model.gguf") && error.contains("ermission denied"), "{error}");
}

/// A file system that is unmounted again.
struct Mounted<'a>(&'a Path);

impl<'a> Mounted<'a> {
    /// `None` where this user may not mount.
    fn tmpfs(at: &'a Path, options: &str) -> Option<Self> {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(at);
        let status = mount.stderr(Stdio::null()).status().ok()?;
        status.success().then_some(Self(at))
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).status();
    }
}
