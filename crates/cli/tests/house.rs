//! House rules that the compiler does not check: which crate may use which, where `unsafe` lives,
//! how long a file may be, and that no file names the machine it was written on.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The allowed edges: a crate, and the crates of this workspace that it may use. An edge that is
/// added here needs an argument in the commit message.
const EDGES: &[(&str, &[&str])] = &[
    ("compute", &[]),
    ("gpu", &["compute"]),
    ("checkpoint", &["compute"]),
    ("vindex", &["compute", "checkpoint"]),
    ("inference", &["compute", "checkpoint", "vindex"]),
    ("query", &["vindex", "inference"]),
    ("server", &["query"]),
    ("python", &["query", "vindex", "inference"]),
    ("cli", &["compute", "gpu", "checkpoint", "vindex", "inference", "query", "server", "python"]),
];

/// The rooms where `unsafe` may stand.
const UNSAFE_ROOMS: &[&str] =
    &["crates/compute/src/arch/", "crates/compute/src/pool.rs", "crates/checkpoint/src/map.rs"];

/// Lines that a source file may have. Tables made by a script are exempt, and say so at the top.
const MAX_LINES: usize = 700;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace root")
}

/// Every file of the project, by its path from the root, with its text where it is text.
fn files() -> Vec<(String, String)> {
    fn visit(dir: &Path, root: &Path, found: &mut Vec<(String, String)>) {
        for entry in fs::read_dir(dir).expect("a readable directory") {
            let path = entry.expect("a directory entry").path();
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            let hidden = name.starts_with('.') && name != ".ci";
            if hidden || ["target", "__pycache__", "shared"].contains(&name.as_str()) {
                continue;
            }
            if path.is_dir() {
                if !name.ends_with(".vindex") {
                    visit(&path, root, found);
                }
            } else if let Ok(text) = fs::read_to_string(&path) {
                let relative = path.strip_prefix(root).expect("below the root");
                found.push((relative.to_string_lossy().replace('\\', "/"), text));
            }
        }
    }
    let mut found = Vec::new();
    visit(&root(), &root(), &mut found);
    assert!(found.len() > 20, "the walk found too little");
    found
}

#[test]
fn only_the_allowed_edges_exist_between_crates() {
    for entry in fs::read_dir(root().join("crates")).expect("crates") {
        let dir = entry.expect("a directory entry").path();
        let name = dir.file_name().expect("a name").to_string_lossy().into_owned();
        let allowed = EDGES.iter().find(|(from, _)| *from == name);
        let (_, allowed) = allowed.unwrap_or_else(|| panic!("{name} is not in the table of edges"));
        let manifest = fs::read_to_string(dir.join("Cargo.toml")).expect("a manifest");
        let used: BTreeSet<&str> = manifest
            .lines()
            .filter_map(|line| line.trim().strip_prefix("larql-"))
            .filter_map(|rest| rest.split(['.', ' ', '=']).next())
            .collect();
        for used in used {
            assert!(allowed.contains(&used), "larql-{name} may not use larql-{used}");
        }
    }
}

#[test]
fn unsafe_code_stays_in_its_rooms() {
    for (path, text) in rust_files() {
        if UNSAFE_ROOMS.iter().any(|room| path.starts_with(room)) {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            let stands =
                code.split(|c: char| !c.is_alphanumeric() && c != '_').any(|w| w == "unsafe");
            // Tests may say the word in a string; a block or a function needs what follows.
            let opens = ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"];
            let opens =
                stands && opens.iter().any(|form| code.contains(form)) && !code.contains('"');
            assert!(!opens, "{path}:{}: unsafe outside of its rooms", number + 1);
        }
    }
}

#[test]
fn files_are_short_and_say_what_they_are() {
    for (path, text) in rust_files() {
        if text.lines().take(5).any(|line| line.contains("@generated")) {
            continue;
        }
        let lines = text.lines().count();
        assert!(lines <= MAX_LINES, "{path} has {lines} lines; {MAX_LINES} are the most");
        assert!(
            text.trim_start().starts_with("//!"),
            "{path} does not open with what it is (a //! comment)"
        );
    }
}

#[test]
fn no_file_names_the_machine_it_was_written_on() {
    // In two halves, so that this file is not found by itself.
    let forbidden = [
        ("/ro", "ot/"),
        ("/wo", "rk/"),
        ("/tmp/", "bash_jobs"),
        ("pypi", ".org"),
        ("pythonhosted", ".org"),
        ("registry.npm", "js"),
        ("deb.", "debian.org"),
        ("index.", "crates.io"),
    ];
    for (path, text) in files() {
        if path == "Cargo.lock" {
            continue;
        }
        for (first, second) in forbidden {
            let word = format!("{first}{second}");
            if let Some(line) = text.lines().position(|line| line.contains(&word)) {
                panic!("{path}:{}: {word:?} belongs to one machine", line + 1);
            }
        }
    }
}

#[test]
fn no_test_is_switched_off() {
    for (path, text) in rust_files() {
        let attribute = format!("#[{}", "ignore");
        assert!(!text.contains(&attribute), "{path}: a test is ignored");
    }
}

fn rust_files() -> impl Iterator<Item = (String, String)> {
    files().into_iter().filter(|(path, _)| path.ends_with(".rs"))
}
