//! The hub over HTTP: one JSON answer, and files that go on where an interrupted fetch stopped.

use std::fs::OpenOptions;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use larql_vindex::Progress;
use ureq::config::RedirectAuthHeaders;
use ureq::http::{Response, Uri, header};
use ureq::{Agent, Body};

use super::super::cannot;
use super::cancelled;
use super::source::{Listing, Source};
use crate::error::{Diagnostic, Failure};
use crate::progress::Bars;

/// Attempts in a row without a new byte before a fetch is given up.
const ATTEMPTS: u32 = 4;
/// Silence after which a connection counts as lost.
const SILENCE: Duration = Duration::from_secs(60);
/// The longest pause that a busy hub may ask for.
const LONGEST_PAUSE: Duration = Duration::from_secs(120);
/// The longest listing that is read; the largest repositories' are a few megabytes.
const LISTING_BYTES: u64 = 64 << 20;

pub(super) struct Client {
    agent: Agent,
    endpoint: String,
    token: Option<String>,
}

/// Why an attempt failed.
enum Trouble {
    /// Another attempt would end alike.
    Lasting(Failure),
    /// It may pass; how long the hub says to wait.
    Passing(String, Option<Duration>),
}

impl<F: Into<Failure>> From<F> for Trouble {
    fn from(failure: F) -> Trouble {
        Trouble::Lasting(failure.into())
    }
}

fn passing(what: impl ToString) -> Trouble {
    Trouble::Passing(what.to_string(), None)
}

impl Client {
    pub(super) fn new(endpoint: &str, token_file: Option<&Path>) -> Result<Client, Failure> {
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        let uri: Option<Uri> = endpoint.parse().ok();
        let host = uri.as_ref().and_then(Uri::host).unwrap_or_default();
        let secure = endpoint.starts_with("https://");
        if host.is_empty() || !(secure || endpoint.starts_with("http://")) {
            let told = Diagnostic::new(format!("{endpoint:?} is no endpoint"));
            return Err(told.help("https://HOST[:PORT][/PATH]").into());
        }
        let token = token_file.map(read_token).transpose()?;
        if token.is_some() && !secure && !matches!(host, "127.0.0.1" | "localhost" | "[::1]") {
            let what = "a token is not sent over plain http: anybody on the way could read it";
            return Err(Diagnostic::new(what)
                .at(endpoint)
                .help("give an https:// endpoint")
                .into());
        }
        let config = Agent::config_builder()
            .https_only(secure)
            .http_status_as_error(false)
            // Files lie on other hosts, whose addresses are signed: the token is not for them.
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .user_agent(concat!("larql/", env!("CARGO_PKG_VERSION")))
            // Lengths and ranges are those of the file, not of a packed form of it.
            .accept_encoding("identity")
            // ureq would take it from the environment, of which larql reads two variables only.
            .proxy(None)
            .timeout_connect(Some(SILENCE / 2))
            .timeout_recv_response(Some(SILENCE))
            .timeout_per_read(Some(SILENCE))
            .build();
        Ok(Client { agent: config.into(), endpoint, token })
    }

    /// The files of a repository at a revision.
    pub(super) fn list(&self, source: &Source, bars: &Bars) -> Result<Listing, Failure> {
        let revision = escaped(&source.revision).replace('/', "%2F");
        let path = format!("api/models/{}/revision/{revision}?blobs=true", source.repository);
        let url = format!("{}/{path}", self.endpoint);
        retrying(&url, bars, |_| {
            let mut body = self.get(&url, source, 0)?.into_body();
            let text = body.with_config().limit(LISTING_BYTES).read_to_string().map_err(passing)?;
            serde_json::from_str(&text).map_err(|error| {
                let told = Diagnostic::new(format!("the hub's listing cannot be read: {error}"));
                told.at(&url).help("is this the endpoint of a Hugging Face hub?").into()
            })
        })
    }

    /// Fetches `name` at a commit into `part`, which may hold the beginning of it already.
    pub(super) fn fetch(
        &self,
        source: &Source,
        (commit, name, size): (&str, &str, u64),
        part: &Path,
        bars: &Bars,
    ) -> Result<(), Failure> {
        let path = format!("{}/resolve/{commit}/{}", source.repository, escaped(name));
        let url = format!("{}/{path}", self.endpoint);
        let cannot_write = |error| cannot("write", part, &error);
        let opened = OpenOptions::new().write(true).create(true).truncate(false).open(part);
        let mut file = opened.map_err(cannot_write)?;
        let mut have = file.seek(SeekFrom::End(0)).map_err(cannot_write)?;
        if have > size {
            // Of another state of the file.
            file.set_len(0).and_then(|()| file.rewind()).map_err(cannot_write)?;
            have = 0;
        }
        // Of a server without ranges, bytes that were there before are no progress.
        let mut furthest = have;
        let mut buffer = vec![0; 1 << 18];
        bars.start(name, size, "bytes");
        bars.advance(have);
        retrying(&url, bars, |progressed| {
            if have == size {
                return Ok(());
            }
            let mut response = self.get(&url, source, have)?;
            if have > 0 && !begins_at(&response, have) {
                file.set_len(0).and_then(|()| file.rewind()).map_err(cannot_write)?;
                have = 0;
                bars.start(name, size, "bytes");
                if response.status().as_u16() == 206 {
                    return Err(passing("the hub sent another range than asked for"));
                }
            }
            let mut body = response.body_mut().as_reader();
            loop {
                if bars.cancelled() {
                    return Err(cancelled().into());
                }
                let read = body.read(&mut buffer).map_err(passing)?;
                if read == 0 && have == size {
                    return Ok(());
                }
                if read == 0 {
                    return Err(passing(format!("it ended after {have} of {size} bytes")));
                }
                if read as u64 > size - have {
                    let what = format!("the file is longer than the {size} bytes listed");
                    return Err(Diagnostic::new(what).at(&url).into());
                }
                file.write_all(&buffer[..read]).map_err(cannot_write)?;
                have += read as u64;
                *progressed |= have > furthest;
                furthest = furthest.max(have);
                bars.advance(read as u64);
            }
        })?;
        bars.finish();
        file.sync_all().map_err(|error| cannot("sync", part, &error))
    }

    /// A response of success, its body from byte `from` where the server knows ranges.
    fn get(&self, url: &str, source: &Source, from: u64) -> Result<Response<Body>, Trouble> {
        let mut request = self.agent.get(url);
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        if from > 0 {
            request = request.header(header::RANGE, format!("bytes={from}-"));
        }
        let response = request.call().map_err(passing)?;
        if response.status().is_success() {
            return Ok(response);
        }
        let field = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
        let answer = format!("the hub answers {}", response.status());
        let accept = format!(
            "accept its terms at {}/{}, and give a token with --token-file FILE",
            self.endpoint, source.repository
        );
        let (meaning, help) = match (response.status().as_u16(), &self.token) {
            (408 | 429 | 500.., _) => {
                let pause = field("retry-after").and_then(|seconds| seconds.parse().ok());
                return Err(Trouble::Passing(answer, pause.map(Duration::from_secs)));
            }
            // The hub tells strangers neither what is private nor what does not exist.
            (401, None) => ("the model is gated or private, or there is none of that name", accept),
            (401, Some(_)) => ("it does not accept the token", "make one that may read".to_owned()),
            (403, _) => ("the model is not open to you", accept),
            (404, _) => ("there is no such model, revision or file", "check the name".to_owned()),
            _ => ("that is no answer of a hub", "check --endpoint".to_owned()),
        };
        let mut told = Diagnostic::new(format!("{answer}: {meaning}")).at(url).help(help);
        if let Some(said) = field("x-error-message") {
            told = told.note(format!("it says: {}", said.chars().take(200).collect::<String>()));
        }
        Err(told.into())
    }
}

/// Tries until it succeeds, or fails for good, or `ATTEMPTS` in a row bring nothing new (an attempt
/// that does sets its flag).
fn retrying<T>(
    url: &str,
    bars: &Bars,
    mut attempt: impl FnMut(&mut bool) -> Result<T, Trouble>,
) -> Result<T, Failure> {
    let mut failed = 0;
    loop {
        let mut progressed = false;
        let (what, pause) = match attempt(&mut progressed) {
            Ok(value) => return Ok(value),
            Err(Trouble::Lasting(failure)) => return Err(failure),
            Err(Trouble::Passing(what, pause)) => (what, pause),
        };
        failed = if progressed { 1 } else { failed + 1 };
        if failed == ATTEMPTS {
            let told = Diagnostic::new(format!("this cannot be fetched: {what}")).at(url);
            let told = told.note(format!("{ATTEMPTS} attempts brought nothing new"));
            return Err(told.help("the same command later goes on from what was fetched").into());
        }
        let pause = pause.unwrap_or(Duration::from_millis(250 << (2 * (failed - 1))));
        let until = Instant::now() + pause.min(LONGEST_PAUSE);
        while Instant::now() < until {
            if bars.cancelled() {
                return Err(cancelled());
            }
            std::thread::sleep(Duration::from_millis(30));
        }
    }
}

/// Whether the body is the file from byte `from` on.
fn begins_at(response: &Response<Body>, from: u64) -> bool {
    let range = response.headers().get(header::CONTENT_RANGE).and_then(|r| r.to_str().ok());
    let begins = range.is_some_and(|range| range.starts_with(&format!("bytes {from}-")));
    response.status().as_u16() == 206 && begins
}

fn read_token(path: &Path) -> Result<String, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| cannot("read", path, &error))?;
    let token = text.trim();
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        let what = "this file does not hold a token: one line such as hf_…";
        return Err(Diagnostic::new(what).at_path(path).into());
    }
    Ok(token.to_owned())
}

/// Percent-encoded, but for slashes.
fn escaped(path: &str) -> String {
    let keep = |b: u8| b.is_ascii_alphanumeric() || b"-._~/".contains(&b);
    let escape = |b: u8| if keep(b) { char::from(b).to_string() } else { format!("%{b:02X}") };
    path.bytes().map(escape).collect()
}
