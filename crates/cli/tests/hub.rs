//! `larql pull hf://…` against a hub that is only pretended, on this machine: no test fetches
//! anything from elsewhere. Built with `--features hub` (`make test-hub`).

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use support::{Ran, larql, ran, scratch};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// What was asked for.
#[derive(Clone, Debug, PartialEq)]
struct Asked {
    path: String,
    from: Option<usize>,
    token: Option<String>,
}

/// What is answered: a status, further header lines, a body, and after how many bytes of it the
/// connection breaks.
#[derive(Default)]
struct Reply {
    status: u16,
    headers: Vec<String>,
    body: Vec<u8>,
    cut: Option<usize>,
}

impl Reply {
    fn status(status: u16) -> Reply {
        Reply { status, ..Reply::default() }
    }

    fn with(mut self, header: impl Into<String>) -> Reply {
        self.headers.push(header.into());
        self
    }

    /// A file, or the rest of it where that was asked for.
    fn file(bytes: &[u8], asked: &Asked) -> Reply {
        match asked.from {
            None => Reply { status: 200, body: bytes.to_vec(), ..Reply::default() },
            Some(from) => Reply { status: 206, body: bytes[from..].to_vec(), ..Reply::default() }
                .with(format!("Content-Range: bytes {from}-{}/{}", bytes.len() - 1, bytes.len())),
        }
    }
}

struct Hub {
    endpoint: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Hub {
    /// Answers until the test program ends. `answer` gets the number of times that the path was
    /// asked for before.
    fn new(answer: impl Fn(&Asked, usize) -> Reply + Send + 'static) -> Hub {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = asked.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.expect("a connection");
                let request = read(&stream);
                let before = {
                    let mut log = log.lock().expect("the log");
                    let same = |other: &&Asked| other.path == request.path;
                    let before = log.iter().filter(same).count();
                    log.push(request.clone());
                    before
                };
                write(stream, &answer(&request, before));
            }
        });
        Hub { endpoint, asked }
    }

    /// Serves these files; the large ones (by name) with a hash, as the hub does.
    fn serving(files: &[(&'static str, Vec<u8>)]) -> Hub {
        let files = files.to_vec();
        Hub::new(move |asked, _| serve(&files, asked))
    }

    fn asked(&self) -> Vec<Asked> {
        self.asked.lock().expect("the log").clone()
    }

    /// The positions from which a file was asked for.
    fn froms(&self, name: &str) -> Vec<Option<usize>> {
        let of_it = |asked: &Asked| asked.path.ends_with(name).then_some(asked.from);
        self.asked().iter().filter_map(of_it).collect()
    }

    fn pull(&self, model: &str, dir: &Path, more: &[&str]) -> Ran {
        let mut command = larql();
        command.args(["pull", model, "--json", "--endpoint", &self.endpoint, "-o"]).arg(dir);
        // Were these read, nothing would arrive.
        command.env("http_proxy", "http://127.0.0.1:9").env("HF_TOKEN", "not-this");
        ran(command.args(more))
    }
}

fn read(stream: &TcpStream) -> Asked {
    let mut lines = BufReader::new(stream).lines().map(|line| line.expect("a request"));
    let first = lines.next().expect("a request");
    let path = first.split(' ').nth(1).expect("a path").to_owned();
    let mut asked = Asked { path, from: None, token: None };
    for line in lines.take_while(|line| !line.is_empty()) {
        let (name, value) = line.split_once(": ").expect("a header");
        match name.to_ascii_lowercase().as_str() {
            "range" => {
                let from = value.strip_prefix("bytes=").and_then(|v| v.strip_suffix('-'));
                asked.from = Some(from.expect("an open range").parse().expect("a number"));
            }
            "authorization" => asked.token = Some(value.to_owned()),
            _ => {}
        }
    }
    asked
}

fn write(mut stream: TcpStream, reply: &Reply) {
    let mut head = format!("HTTP/1.1 {} Said\r\nConnection: close\r\n", reply.status);
    head += &format!("Content-Length: {}\r\n", reply.body.len());
    for header in &reply.headers {
        head += &format!("{header}\r\n");
    }
    let body = &reply.body[..reply.cut.unwrap_or(reply.body.len())];
    // larql may have gone: then nobody is there to tell.
    let _ = stream.write_all(format!("{head}\r\n").as_bytes());
    let _ = stream.write_all(body);
}

fn listed(name: &str, bytes: &[u8]) -> Value {
    let mut listed = json!({ "rfilename": name, "size": bytes.len(), "blobId": "0" });
    if name.ends_with(".safetensors") || name.ends_with(".gguf") {
        let sha256: String = Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect();
        listed["lfs"] = json!({ "sha256": sha256, "size": bytes.len(), "pointerSize": 130 });
    }
    listed
}

fn listing(siblings: &[Value]) -> Reply {
    let body = json!({ "id": "org/repo", "sha": COMMIT, "siblings": siblings });
    Reply { status: 200, body: body.to_string().into_bytes(), ..Reply::default() }
}

fn serve(files: &[(&str, Vec<u8>)], asked: &Asked) -> Reply {
    if asked.path.starts_with("/api/models/org/repo/revision/") {
        let siblings: Vec<_> = files.iter().map(|(name, bytes)| listed(name, bytes)).collect();
        return listing(&siblings);
    }
    let name = asked.path.strip_prefix(&format!("/org/repo/resolve/{COMMIT}/"));
    match files.iter().find(|(file, _)| Some(*file) == name) {
        Some((_, bytes)) => Reply::file(bytes, asked),
        None => Reply::status(404),
    }
}

/// Bytes without a pattern that a shift could hide.
fn bytes(n: u32) -> Vec<u8> {
    (0..n).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

fn model() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        (".gitattributes", b"x".to_vec()),
        ("config.json", b"{}".to_vec()),
        ("model-00001-of-00002.safetensors", bytes(700_000)),
        ("model-00002-of-00002.safetensors", bytes(300_001)),
        ("model.safetensors.index.json", b"{\"weight_map\":{}}".to_vec()),
        ("consolidated.safetensors", bytes(10)),
        ("pytorch_model.bin", bytes(10)),
        ("original/model.safetensors", bytes(10)),
        ("tokenizer.json", b"{\"a\":1}".to_vec()),
        ("tokenizer_config.json", b"{}".to_vec()),
        ("q4/m.gguf", bytes(5_000)),
    ]
}

/// Names in a directory, but for the lock.
fn names(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    let mut names: Vec<_> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    names.retain(|name| name != ".larql-pull.lock");
    names.sort();
    names
}

fn target(name: &str) -> PathBuf {
    scratch(name).join("model")
}

const WEIGHTS: &str = "model-00001-of-00002.safetensors";

#[test]
fn the_files_of_a_model_are_fetched_and_no_others() {
    let (hub, dir) = (Hub::serving(&model()), target("whole"));
    let pulled = hub.pull("hf://org/repo", &dir, &[]).json();
    assert_eq!(pulled["commit"], COMMIT);
    assert_eq!(pulled["path"], dir.to_str().expect("UTF-8"));
    let expected = [
        "config.json",
        WEIGHTS,
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ];
    assert_eq!(names(&dir), expected);
    for (name, content) in model().iter().filter(|(name, _)| expected.contains(name)) {
        assert_eq!(fs::read(dir.join(name)).expect("a file"), *content, "{name}");
    }
    assert_eq!(hub.asked()[0].path, "/api/models/org/repo/revision/main?blobs=true");
    assert!(hub.asked().iter().all(|asked| asked.token.is_none()), "no token was given");

    // Again: what has a hash is not fetched twice, unless it was changed.
    fs::write(dir.join(WEIGHTS), b"changed").expect("a file");
    let again = hub.pull("hf://org/repo@refs/pr/1", &dir, &[]).json();
    let fetched = |name: &str| {
        let files = again["files"].as_array().expect("files");
        files.iter().find(|file| file["name"] == name).expect("the file")["fetched"].clone()
    };
    assert_eq!(fetched(WEIGHTS), true);
    assert_eq!(fetched("model-00002-of-00002.safetensors"), false);
    assert_eq!(names(&dir), expected);
    let lists = |asked: &Asked| asked.path.contains("/revision/refs%2Fpr%2F1?");
    assert!(hub.asked().iter().any(lists), "{:?}", hub.asked());
}

#[test]
fn one_gguf_file_is_fetched_by_its_name() {
    let (hub, dir) = (Hub::serving(&model()), target("gguf"));
    let pulled = hub.pull("hf://org/repo@v1/q4/m.gguf", &dir, &[]).json();
    assert_eq!(pulled["path"], dir.join("m.gguf").to_str().expect("UTF-8"));
    assert_eq!(names(&dir), ["m.gguf"]);
    assert_eq!(fs::read(dir.join("m.gguf")).expect("the file"), bytes(5_000));
    let missing = hub.pull("hf://org/repo/q8.gguf", &dir, &[]);
    missing.fails(1, &["no file q8.gguf", "has q4/m.gguf"]);
}

#[test]
fn a_broken_connection_goes_on_where_it_broke() {
    let (files, dir) = (model(), target("broken"));
    let hub = Hub::new(move |asked, before| {
        let reply = serve(&files, asked);
        let cut = (asked.path.ends_with(WEIGHTS) && before < 2).then_some(100_000);
        Reply { cut, ..reply }
    });
    hub.pull("hf://org/repo", &dir, &[]).json();
    assert_eq!(fs::read(dir.join(WEIGHTS)).expect("the file"), bytes(700_000));
    assert_eq!(hub.froms(WEIGHTS), [None, Some(100_000), Some(200_000)]);
}

#[test]
fn a_pull_that_gave_up_is_resumed_by_the_next() {
    let (files, dir) = (model(), target("resumed"));
    let hub = Hub::new(move |asked, before| match before {
        0 if asked.path.ends_with(WEIGHTS) => Reply { cut: Some(50_000), ..serve(&files, asked) },
        1..4 if asked.path.ends_with(WEIGHTS) => Reply::status(503).with("Retry-After: 0"),
        _ => serve(&files, asked),
    });
    let failed = hub.pull("hf://org/repo", &dir, &[]);
    failed.fails(1, &["503", "4 attempts", WEIGHTS, "goes on"]);
    assert_eq!(names(&dir), [format!(".{WEIGHTS}.part")]);
    hub.pull("hf://org/repo", &dir, &[]).json();
    assert_eq!(fs::read(dir.join(WEIGHTS)).expect("the file"), bytes(700_000));
    assert_eq!(hub.froms(WEIGHTS).last(), Some(&Some(50_000)));
}

#[test]
fn a_part_of_another_revision_or_a_server_without_ranges_does_no_harm() {
    let dir = target("other");
    fs::create_dir_all(&dir).expect("a directory");
    let part = dir.join(format!(".{WEIGHTS}.part"));
    // Other bytes, too many bytes, and a server that always sends the whole file.
    for (old, ranges) in [(vec![7; 1000], true), (vec![7; 800_000], true), (bytes(1000), false)] {
        let files = model();
        let hub = Hub::new(move |asked, _| {
            let from = asked.from.filter(|_| ranges);
            serve(&files, &Asked { from, ..asked.clone() })
        });
        fs::write(&part, old).expect("a file");
        hub.pull("hf://org/repo", &dir, &["--force"]).json();
        assert_eq!(fs::read(dir.join(WEIGHTS)).expect("the file"), bytes(700_000));
        assert!(!part.exists());
    }
}

#[test]
fn a_server_that_breaks_off_at_the_same_byte_again_and_again_is_given_up() {
    let (files, dir) = (model(), target("stuck"));
    let hub = Hub::new(move |asked, _| {
        let reply = serve(&files, &Asked { from: None, ..asked.clone() });
        let cut = asked.path.ends_with(WEIGHTS).then_some(1000);
        Reply { cut, ..reply }
    });
    hub.pull("hf://org/repo", &dir, &[]).fails(1, &["4 attempts", WEIGHTS]);
    assert!(hub.froms(WEIGHTS).len() <= 5, "{:?}", hub.asked());
}

#[test]
fn wrong_content_is_never_put_in_place() {
    for (name, served) in [("hash", vec![1; 700_000]), ("long", vec![1; 700_001])] {
        let (files, dir) = (model(), target(name));
        fs::create_dir_all(&dir).expect("a directory");
        fs::write(dir.join(WEIGHTS), b"an older file").expect("a file");
        let hub = Hub::new(move |asked, _| match asked.path.ends_with(WEIGHTS) {
            true => Reply::file(&served, asked),
            false => serve(&files, asked),
        });
        let failed = hub.pull("hf://org/repo", &dir, &[]);
        failed.fails(1, &[WEIGHTS, if name == "hash" { "SHA-256 is wrong" } else { "longer" }]);
        assert_eq!(fs::read(dir.join(WEIGHTS)).expect("the file"), b"an older file");
        assert!(!dir.join("config.json").exists());
    }
}

#[test]
fn refusals_say_what_to_do() {
    let dir = target("refused");
    let token = scratch("token").join("token");
    fs::write(&token, "hf_secret\n").expect("a file");
    let token = token.to_str().expect("UTF-8");
    for (status, more, wanted) in [
        (401, &[][..], &["401", "gated or private", "accept its terms", "--token-file"][..]),
        (401, &["--token-file", token], &["does not accept the token"]),
        (403, &["--token-file", token], &["403", "not open to you"]),
        (404, &[], &["404", "no such model"]),
        (418, &[], &["418", "--endpoint"]),
        (429, &[], &["429", "4 attempts"]),
    ] {
        let hub = Hub::new(move |_, _| {
            Reply::status(status).with("Retry-After: 0").with("X-Error-Message: because")
        });
        let told = hub.pull("hf://org/repo", &dir, more).fails(1, wanted);
        assert_eq!(told.contains("it says: because"), status != 429, "{told}");
        assert!(!told.contains("hf_secret"), "{told}");
        let sent = more.last().map(|_| "Bearer hf_secret".to_owned());
        assert_eq!(hub.asked()[0].token, sent);
        assert_eq!(hub.asked().len(), if status == 429 { 4 } else { 1 });
    }
    let hub = Hub::new(|_, _| Reply { status: 200, body: b"<html>".to_vec(), ..Reply::default() });
    hub.pull("hf://org/repo", &dir, &[]).fails(1, &["listing cannot be read", "--> http"]);
    assert!(!dir.exists());
}

#[test]
fn a_name_that_leaves_the_directory_is_refused() {
    for name in ["../model.safetensors", "/etc/config.json", "a/../../tokenizer.json", "..\\b.gguf"]
    {
        let dir = target("escape");
        let hub = Hub::new(move |_, _| {
            listing(&[
                listed("config.json", b"{}"),
                listed("model.safetensors", b"x"),
                listed(name, b"y"),
            ])
        });
        hub.pull("hf://org/repo", &dir, &[]).fails(1, &["no repository can have"]);
        assert!(!dir.exists());
        assert_eq!(hub.asked().len(), 1);
    }
    let hub = Hub::serving(&model());
    for model in ["hf://org/repo/../m.gguf", "hf://../repo", "hf://org", "hf://org/repo@../x"] {
        hub.pull(model, &target("escape"), &[]).fails(1, &["does not name a model"]);
    }
    assert!(hub.asked().is_empty());
}

#[test]
fn redirects_are_followed_and_the_token_stays_with_its_host() {
    let dir = target("redirect");
    let token = scratch("redirect-token").join("token");
    fs::write(&token, "hf_secret").expect("a file");
    let files = model();
    let store = Hub::new(move |asked, before| {
        let path = asked.path.replace("/store", "");
        let cut = (path.ends_with(WEIGHTS) && before == 0).then_some(1234);
        Reply { cut, ..serve(&files, &Asked { path, ..asked.clone() }) }
    });
    // By another name, so that it is another host.
    let elsewhere = store.endpoint.replace("127.0.0.1", "localhost");
    let files = model();
    let hub = Hub::new(move |asked, _| match asked.path.strip_prefix("/here") {
        _ if asked.path.ends_with(".safetensors") => {
            Reply::status(302).with(format!("Location: {elsewhere}/store{}", asked.path))
        }
        Some(path) => serve(&files, &Asked { path: path.to_owned(), ..asked.clone() }),
        None => Reply::status(307).with(format!("Location: /here{}", asked.path)),
    });
    let token = token.to_str().expect("UTF-8");
    hub.pull("hf://org/repo", &dir, &["--token-file", token]).json();
    assert_eq!(fs::read(dir.join(WEIGHTS)).expect("the file"), bytes(700_000));
    assert_eq!(store.froms(WEIGHTS), [None, Some(1234)]);
    assert!(store.asked().iter().all(|asked| asked.token.is_none()), "{:?}", store.asked());
    assert!(hub.asked().iter().all(|asked| asked.token.is_some()), "{:?}", hub.asked());
}

#[test]
fn what_cannot_be_asked_is_refused_before_anything_is_sent() {
    let dir = target("usage");
    let hub = Hub::new(|_, _| {
        listing(&[
            listed("config.json", b"{}"),
            listed("pytorch_model.bin", b"x"),
            listed("m.gguf", b"x"),
        ])
    });
    let wanted = ["no safetensors model", "has m.gguf", "FILE.gguf"];
    hub.pull("hf://org/repo", &dir, &[]).fails(1, &wanted);
    let gguf = dir.with_file_name("x.gguf");
    hub.pull("hf://org/repo/m.gguf", &gguf, &[]).fails(1, &["-o names a directory"]);

    let token = scratch("usage-token").join("token");
    fs::write(&token, "two words").expect("a file");
    let token = token.to_str().expect("UTF-8");
    hub.pull("hf://org/repo", &dir, &["--token-file", token]).fails(1, &["does not hold a token"]);
    fs::write(token, "hf_secret").expect("a file");
    for (endpoint, wanted) in
        [("http://mirror.invalid", "plain http"), ("ftp://x", "no endpoint"), ("x", "no endpoint")]
    {
        let args = ["pull", "hf://org/repo", "--token-file", token, "--endpoint", endpoint];
        support::run(&args).fails(1, &[wanted]);
    }
    support::run(&["pull", "gemma-3-270m", "--endpoint", "http://x"]).fails(1, &["hf://"]);
    assert!(!dir.exists());
}
