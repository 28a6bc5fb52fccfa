//! `larql chat`: on a tiny random model whose template is made here, and on the demo model (tests
//! named `model_`).

mod support;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::{Value, json};
use support::{Ran, larql, run, scratch, vindex};

const LINES: &str = "\
{% for message in messages %}
<{{ message.role }}> {{ message.content | trim }}
{% endfor %}
{% if add_generation_prompt %}
<assistant>{% endif %}";

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(name)
}

/// A Hugging Face directory with a tiny model; its configuration of the tokenizer has `keys` too.
fn source(name: &str, keys: &Value) -> PathBuf {
    let dir = scratch(name).join("hf");
    fs::create_dir(&dir).expect("a directory");
    for entry in fs::read_dir(data("models/llama/hf")).expect("the model") {
        let entry = entry.expect("an entry");
        fs::copy(entry.path(), dir.join(entry.file_name())).expect("a copy");
    }
    let path = dir.join("tokenizer_config.json");
    let text = fs::read_to_string(&path).expect("the configuration");
    let mut config: Value = serde_json::from_str(&text).expect("JSON");
    for (key, value) in keys.as_object().expect("keys") {
        config[key] = value.clone();
    }
    fs::write(&path, config.to_string()).expect("it is written");
    dir
}

/// A vindex of `source`, beside it.
fn extract(source: &Path) -> PathBuf {
    let target = source.with_extension("vindex");
    let (from, to) = (source.to_str().expect("UTF-8"), target.to_str().expect("UTF-8"));
    run(&["extract-index", from, "-o", to, "--labels", "none"]).ok();
    target
}

/// A vindex of the tiny model with a template of plain lines.
fn tiny(name: &str) -> PathBuf {
    extract(&source(name, &json!({ "chat_template": LINES })))
}

/// Runs `larql chat` with these lines on its input.
fn chat(vindex: &Path, args: &[&str], lines: &str) -> Ran {
    let mut command = larql();
    command.arg("chat").arg(vindex).args(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("larql starts");
    // A chat that fails does not read to the end.
    let _ = child.stdin.take().expect("a pipe").write_all(lines.as_bytes());
    let output = child.wait_with_output().expect("larql ends");
    Ran {
        stdout: String::from_utf8(output.stdout).expect("output is UTF-8"),
        stderr: String::from_utf8(output.stderr).expect("errors are UTF-8"),
        code: output.status.code(),
    }
}

/// The objects of `--json`, one a line.
fn rows(ran: Ran) -> Vec<Value> {
    let text = ran.ok();
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn each_line_is_a_turn() {
    let vindex = tiny("turns");
    let args = ["-n", "8", "--json", "--system", "be kind"];
    let found = rows(chat(&vindex, &args, "the cat\n\nand then?\r\nwhy"));
    assert_eq!(found.len(), 3, "an empty line is nothing said");
    assert_eq!(found[0]["cached_tokens"], 0);
    let count = |row: &Value, key: &str| row[key].as_u64().expect("a number");
    for rows in found.windows(2) {
        let before = count(&rows[0], "prompt_tokens") + count(&rows[0], "cached_tokens");
        let cached = count(&rows[1], "cached_tokens");
        assert!(cached + 1 >= before, "only what is new is run: {} of {before}", cached);
    }
    let args = ["-n", "8", "-q", "--system", "be kind"];
    let plain = chat(&vindex, &args, "the cat\nand then?\nwhy\n");
    assert_eq!(plain.stderr, "");
    let texts: Vec<&str> = found.iter().map(|row| row["text"].as_str().expect("text")).collect();
    assert_eq!(plain.ok(), texts.join("\n") + "\n", "nothing but the replies");
    assert_eq!(chat(&vindex, &[], "").ok(), "");
    let draw = |seed: &str| {
        let args = ["-n", "8", "--json", "--temperature", "2", "--seed", seed];
        let found = rows(chat(&vindex, &args, "the cat\nand then?\n"));
        found.iter().map(|row| row["tokens"].to_string()).collect::<Vec<_>>()
    };
    assert_eq!(draw("1"), draw("1"));
    assert_ne!(draw("1"), draw("2"));
}

#[test]
fn templates_come_from_wherever_the_model_has_them() {
    // Each says where it was.
    let says = |text: &str| format!("{{{{ raise_exception('template of {text}') }}}}");
    let named = json!([
        { "name": "tool_use", "template": says("tools") },
        { "name": "default", "template": says("a list") },
    ]);
    let one = json!([{ "name": "rag", "template": says("a list of one") }]);
    for (name, template, wanted) in [
        ("string", json!(says("a string")), "template of a string"),
        ("named", named, "template of a list"),
        ("one", one, "template of a list of one"),
    ] {
        let source = source(name, &json!({ "chat_template": template }));
        let vindex = extract(&source);
        let refused = "the chat template refuses this conversation";
        chat(&vindex, &[], "a\n").fails(1, &[refused, wanted]);
        // The GGUF that was written has it too; beside it there is no tokenizer.json.
        let gguf = source.with_file_name("again.gguf");
        fs::copy(vindex.join("model.gguf"), &gguf).expect("a copy");
        chat(&extract(&gguf), &[], "a\n").fails(1, &[refused, wanted]);
    }
    let source = source("file", &json!({ "chat_template": says("a string") }));
    fs::write(source.join("chat_template.jinja"), says("a file")).expect("it is written");
    let vindex = extract(&source);
    chat(&vindex, &[], "a\n").fails(1, &["template of a file"]);
    let given = source.join("given.jinja");
    fs::write(&given, says("a flag")).expect("it is written");
    let given = given.to_str().expect("UTF-8");
    chat(&vindex, &["--template", given], "a\n").fails(1, &["template of a flag"]);
    fs::write(given, "{% for %}").expect("it is written");
    chat(&vindex, &["--template", given], "a\n").fails(1, &[given, "no Jinja", "line 1"]);
    fs::write(given, [0xff]).expect("it is written");
    chat(&vindex, &["--template", given], "a\n").fails(1, &[given, "UTF-8"]);
    chat(&vindex, &["--template", "no-such"], "a\n").fails(1, &["no-such"]);
}

#[test]
fn a_full_context_is_an_error_or_turns_are_forgotten() {
    let vindex = tiny("context");
    let lines = "the cat sat\n".repeat(12);
    let ran = chat(&vindex, &["-n", "6", "--json", "--context", "100"], &lines);
    assert_eq!(ran.code, Some(1), "{ran:#?}");
    assert!(!ran.stdout.is_empty(), "what was said before is shown");
    for wanted in ["the context has 100", "--context 100,shift", "--context 200"] {
        assert!(ran.stderr.contains(wanted), "{wanted}: {}", ran.stderr);
    }
    let long = "the cat sat on the mat ".repeat(40);
    chat(&vindex, &[], &long).fails(1, &["the context has 128", "--context shift"]);
    let ran = chat(&vindex, &["-n", "6", "--json", "--context", "100,shift"], &lines);
    assert!(ran.stderr.contains("the context is full: the "), "{}", ran.stderr);
    let found = rows(ran);
    assert_eq!(found.len(), 12);
    assert!(found.iter().any(|row| row["forgotten_turns"].as_u64() > Some(0)));
}

#[test]
fn commands_begin_with_a_slash() {
    let vindex = tiny("commands");
    let file = scratch("save").join("chat.json");
    let name = file.to_str().expect("UTF-8");
    let lines = format!(
        "the cat\n/reset\n/system be kind\n//etc\n/save {name}\nmore\n/save {name}\n/help\n/exit\n\
         never said\n"
    );
    let ran = chat(&vindex, &["-n", "4", "--json"], &lines);
    assert!(ran.stderr.contains("/system TEXT"), "{}", ran.stderr);
    let found = rows(ran);
    assert_eq!(found.len(), 3);
    let saved = fs::read_to_string(&file).expect("it is saved");
    let saved: Value = serde_json::from_str(&saved).expect("JSON");
    let turn = |role: &str, content: &Value| json!({ "role": role, "content": content });
    let expected = json!([
        turn("system", &"be kind".into()),
        turn("user", &"/etc".into()),
        turn("assistant", &found[1]["text"]),
        turn("user", &"more".into()),
        turn("assistant", &found[2]["text"]),
    ]);
    assert_eq!(saved, expected);
    // What another chat wrote is left as it is.
    let ran = chat(&vindex, &[], &format!("/save {name}\n"));
    ran.fails(1, &[name, "name another file"]);
    chat(&vindex, &[], "/forget\n").fails(1, &["/forget", "/help"]);
    chat(&vindex, &[], "/save\n").fails(1, &["/save", "file"]);
}

#[test]
fn what_cannot_be_is_refused() {
    let vindex = extract(&source("base", &json!({})));
    let base = ["no chat template", "base model", "larql run", "--template FILE"];
    chat(&vindex, &[], "a\n").fails(1, &base);
    let vindex = tiny("refused");
    chat(&vindex, &["--top-k", "5"], "a\n").fails(1, &["--top-k", "--temperature"]);
    chat(&vindex, &["--stop", ""], "a\n").fails(1, &["a stop string"]);
    let long = "the cat sat on the mat ".repeat(20);
    let told = chat(&vindex, &["--context", "64,shift"], &long).fails(1, &["the context has 64"]);
    assert!(!told.contains(",shift"), "it is there already: {told}");
    let mut command = larql();
    command.args(["chat", "-n", "4"]).arg(&vindex);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("larql starts");
    let _ = child.stdin.take().expect("a pipe").write_all(b"a\n\xff\n");
    let output = child.wait_with_output().expect("larql ends");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("stdin, line 2") && told.contains("UTF-8"), "{told}");
}

/// The demo model is a base model: with a template that looks like the text that it knows, it
/// answers all the same.
#[test]
fn model_chats_with_a_template_of_questions_and_answers() {
    let Some(vindex) = vindex() else { return };
    chat(vindex, &[], "a\n").fails(1, &["no chat template", "larql run"]);
    let template = data("chat/questions.jinja");
    let args = ["--template", template.to_str().expect("UTF-8"), "-n", "20", "--json"];
    let lines = "What is the capital of France?\nWho wrote Hamlet?\n";
    let found = rows(chat(vindex, &args, lines));
    let said = |turn: usize| found[turn]["text"].as_str().expect("text").trim();
    assert_eq!((said(0), said(1)), ("Paris", "Shakespeare"));
    assert_eq!((&found[0]["finish"], &found[1]["finish"]), (&"stop".into(), &"stop".into()));
    assert_eq!(found[1]["cached_tokens"], 16);
}

/// A process that does not outlive its test.
#[cfg(unix)]
struct Ended(std::process::Child);

#[cfg(unix)]
impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// On a terminal: Ctrl-C ends the reply and not the chat, lines come back, and no text of the frame
/// is shown.
#[cfg(unix)]
#[test]
fn model_a_person_chats_on_a_terminal() {
    use std::io::Read;
    use std::time::{Duration, Instant};

    let Some(vindex) = vindex() else { return };
    use rustix::fs::{Mode, OFlags};
    use rustix::pty::OpenptFlags;

    let controller = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY);
    let controller = controller.expect("a terminal");
    // With a copy of it, larql would not see that the terminal is gone.
    let kept = rustix::io::fcntl_setfd(&controller, rustix::io::FdFlags::CLOEXEC);
    kept.expect("it stays here");
    rustix::pty::grantpt(&controller).expect("it is ours");
    rustix::pty::unlockpt(&controller).expect("it is open");
    let path = rustix::pty::ptsname(&controller, Vec::new()).expect("its name");
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let end = || rustix::fs::open(&path, flags, Mode::empty()).expect("its other end");
    let template = data("chat/gemma.jinja");
    let mut command = larql();
    command
        .arg("chat")
        .arg(vindex)
        .arg("--template")
        .arg(template)
        .env("TERM", "xterm")
        .env("NO_COLOR", "1");
    command.stdin(end()).stdout(end()).stderr(end());
    let mut child = Ended(command.spawn().expect("larql starts"));
    drop(command);

    let mut keyboard = fs::File::from(controller);
    let mut screen = keyboard.try_clone().expect("the same terminal");
    let (shown, chunks) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut chunk = [0; 4096];
        while let Ok(n @ 1..) = screen.read(&mut chunk) {
            if shown.send(chunk[..n].to_vec()).is_err() {
                break;
            }
        }
    });
    let mut seen = Vec::new();
    // Reads on until this is shown; what was shown before it is done with.
    let mut until = |wanted: &str| {
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            let found = seen.windows(wanted.len()).position(|w| w == wanted.as_bytes());
            if let Some(at) = found {
                let rest = seen.split_off(at + wanted.len());
                let before = std::mem::replace(&mut seen, rest);
                return String::from_utf8_lossy(&before).into_owned();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match chunks.recv_timeout(left) {
                Ok(chunk) => seen.extend(chunk),
                Err(_) => panic!("no {wanted:?} in {:?}", String::from_utf8_lossy(&seen)),
            }
        }
    };
    let mut press = |keys: &[u8]| keyboard.write_all(keys).expect("keys are pressed");
    until("/help lists commands");
    until("> ");
    press(b"What is the capital of France?\r");
    // It is a base model: in this frame it repeats itself for ever.
    until("What is the capital of France?");
    until("What is the capital");
    let id = child.0.id().to_string();
    let kill = std::process::Command::new("kill").args(["-INT", &id]).status();
    assert!(kill.expect("kill runs").success());
    let rest = until("interrupted: the reply is unfinished");
    assert!(!rest.contains("_turn>"), "{rest:?}");
    until("> ");
    press(b"\x03");
    until("Ctrl-D or /exit ends the chat");
    until("> ");
    press(b"/nonsense\r");
    until("there is no command /nonsense");
    until("> ");
    press(b"\x1b[A");
    until("/nonsense");
    press(b"\x15/help\r");
    until("/save FILE");
    until("> ");
    press(b"\x04");
    let ended = child.0.wait().expect("it ends");
    assert_eq!(ended.code(), Some(0));
}
