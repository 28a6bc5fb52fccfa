//! What `hf://…` names, and which of a repository's files make a model.

use serde::Deserialize;

use crate::error::{Diagnostic, Failure};

/// `hf://ORG/REPO[@REVISION][/FILE.gguf]`, taken apart.
pub(super) struct Source {
    /// `ORG/REPO`.
    pub(super) repository: String,
    /// A branch, a tag or a commit.
    pub(super) revision: String,
    /// The one GGUF file that is wanted; else the safetensors model.
    pub(super) file: Option<String>,
}

/// The hub's answer about a revision, of which this much is read.
#[derive(Deserialize)]
pub(super) struct Listing {
    /// The commit, by which the files are then fetched: all of one state.
    pub(super) sha: String,
    siblings: Vec<Listed>,
}

#[derive(Deserialize)]
pub(super) struct Listed {
    /// Path in the repository, slashes between its parts.
    #[serde(rename = "rfilename")]
    pub(super) name: String,
    /// In bytes.
    pub(super) size: Option<u64>,
    /// Of files kept outside of git: the large ones.
    pub(super) lfs: Option<Lfs>,
}

#[derive(Deserialize)]
pub(super) struct Lfs {
    /// In hexadecimal.
    pub(super) sha256: String,
}

impl Source {
    pub(super) fn parse(text: &str) -> Result<Source, Failure> {
        Source::taken_apart(text).ok_or_else(|| {
            Diagnostic::new(format!("{text:?} does not name a model on the hub"))
                .help("hf://ORG/REPO, hf://ORG/REPO@REVISION or hf://ORG/REPO[@REVISION]/FILE.gguf")
                .into()
        })
    }

    fn taken_apart(text: &str) -> Option<Source> {
        let (org, rest) = text.strip_prefix("hf://")?.split_once('/')?;
        let (repo, tail) = rest.split_at(rest.find(['@', '/']).unwrap_or(rest.len()));
        let (revision, file) = match tail.strip_prefix('@') {
            // A revision may have slashes (refs/pr/1), but not where a file follows.
            Some(tail) if tail.ends_with(".gguf") => {
                tail.split_once('/').map(|(revision, file)| (revision, Some(file)))?
            }
            Some(revision) => (revision, None),
            None => ("main", tail.strip_prefix('/').filter(|file| !file.is_empty())),
        };
        let plain = |name: &str| {
            let sign = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            !name.is_empty() && !name.starts_with('.') && name.chars().all(sign)
        };
        let file_is_sound = file.is_none_or(|file| file.ends_with(".gguf") && stays_inside(file));
        let sound = plain(org) && plain(repo) && stays_inside(revision) && file_is_sound;
        let (revision, file) = (revision.to_owned(), file.map(str::to_owned));
        sound.then(|| Source { repository: format!("{org}/{repo}"), revision, file })
    }

    /// The files to fetch: `config.json` last, so that a directory which has it has the rest.
    pub(super) fn select<'a>(&self, listing: &'a Listing) -> Result<Vec<&'a Listed>, Failure> {
        let all = &listing.siblings;
        let refusal = |what: String| {
            Diagnostic::new(what).at(format!("hf://{}@{}", self.repository, self.revision))
        };
        // No repository has such a name by accident; nothing else that it says is to be believed.
        if let Some(bad) = all.iter().find(|file| !stays_inside(&file.name)) {
            let what = format!("the hub lists a file that no repository can have: {:?}", bad.name);
            return Err(refusal(what).into());
        }
        let has = |name: &str| all.iter().any(|file| file.name == name);
        let single = has("model.safetensors");
        let sharded = has("model.safetensors.index.json") && !single;
        let wanted = |name: &str| match (&self.file, name) {
            (Some(file), _) => name == file,
            (_, "config.json" | "generation_config.json" | "chat_template.jinja") => true,
            (_, "model.safetensors") => true,
            (_, "model.safetensors.index.json") => sharded,
            // Elsewhere lie other forms of the model; Mistral's repositories have one here.
            _ if name.contains(['/', '\\', ':']) || name.starts_with("consolidated") => false,
            _ if name.ends_with(".safetensors") => sharded,
            _ => name.starts_with("tokenizer") && name.ends_with(".json"),
        };
        let mut found: Vec<_> = all.iter().filter(|file| wanted(&file.name)).collect();
        found.sort_by_key(|file| file.name == "config.json");
        let whole = (single || sharded) && has("config.json");
        let what = match &self.file {
            Some(file) if found.is_empty() => format!("the repository has no file {file}"),
            None if !whole => "the repository has no safetensors model with a config.json".into(),
            _ => return Ok(found),
        };
        let ggufs = all.iter().filter(|file| file.name.ends_with(".gguf"));
        let told = ggufs.fold(refusal(what), |told, file| told.note(format!("has {}", file.name)));
        Err(told.help("a GGUF file is named whole: hf://ORG/REPO/FILE.gguf").into())
    }
}

/// Whether a path stays below the directory that it is joined to, on every system.
fn stays_inside(path: &str) -> bool {
    let climbs = |part: &str| matches!(part, "" | "." | "..");
    !path.contains(char::is_control) && !path.split(['/', '\\']).any(climbs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str) -> Option<(String, String, Option<String>)> {
        Source::taken_apart(text).map(|s| (s.repository, s.revision, s.file))
    }

    #[test]
    fn names_are_taken_apart() {
        for (text, repository, revision, file) in [
            ("hf://a/b", "a/b", "main", None),
            ("hf://a/b/", "a/b", "main", None),
            ("hf://a/b-1.5_x@v2", "a/b-1.5_x", "v2", None),
            ("hf://a/b@refs/pr/1", "a/b", "refs/pr/1", None),
            ("hf://a/b/c.gguf", "a/b", "main", Some("c.gguf")),
            ("hf://a/b@v2/d/c.gguf", "a/b", "v2", Some("d/c.gguf")),
        ] {
            let expected = (repository.to_owned(), revision.to_owned(), file.map(str::to_owned));
            assert_eq!(parts(text), Some(expected), "{text}");
        }
        for text in "hf://a hf://a/ hf:///b hf://a/b@ hf://a/b/c.bin hf://a/b@v.gguf hf://../b \
                     hf://a/.. hf://a/b@../c hf://a/b/../c.gguf hf://a/b/c\\..\\d.gguf \
                     hf://a/b//c.gguf hf://a/b?c hf://a%20b/c"
            .split(' ')
        {
            assert_eq!(parts(text), None, "{text}");
        }
    }
}
