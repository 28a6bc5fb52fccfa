//! All labels at once: a coarse scan of the vocabulary for every group of features, layer by layer
//! so that an interrupted run goes on where it stopped.

use std::ops::Range;
use std::path::Path;
use std::time::Instant;

use larql_compute::{Cpu, Queries};

use super::directions::Directions;
use super::file::{LabelFile, LabelWriter, LayerState, Layout};
use super::unembedding::Unembedding;
use super::{LabelOptions, LabelScore, corrupt, layout_of, push_directions};
use crate::files::{self, FileKind};
use crate::manifest::{FileEntry, Manifest};
use crate::{Progress, Vindex, VindexError, atomic, hash};

/// Bytes of directions that are held at a time, in float32 and packed, ...
const GROUP_BYTES: usize = 64 << 20;
/// ... but no fewer features than make packing the vocabulary for them worth while, and no more
/// than keep the loss of an interruption small.
const GROUP_FEATURES: Range<usize> = 2048..8192;

/// What [`compute`] did.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct LabelReport {
    /// Features labelled now.
    pub features: usize,
    /// Features that had labels already.
    pub kept: usize,
    /// Tokens of the vocabulary.
    pub tokens: usize,
    /// Tokens kept for each sign.
    pub top_tokens: usize,
    /// How tokens were scored.
    #[serde(serialize_with = "score_name")]
    pub score: LabelScore,
    /// Scores that were computed in float32 after the integer scan, over all features.
    pub rescored: u64,
    /// Wall-clock seconds.
    pub seconds: f64,
}

fn score_name<S: serde::Serializer>(score: &LabelScore, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(score.name())
}

/// Consecutive features of one layer.
#[derive(Debug, Clone, PartialEq)]
struct Span {
    layer: usize,
    features: Range<usize>,
    /// Whether the layer is complete with this span.
    last: bool,
}

/// Computes the labels of all features of the layers asked for and writes them into the vindex.
/// Layers that have labels are left as they are unless everything is to be computed anew. What is
/// done when the work is stopped stays, whole layers at a time.
///
/// # Errors
/// A vindex without down projections or unembedding; labels that are there with another number of
/// tokens or another score; values that are not finite; a full disk; [`VindexError::Cancelled`].
pub fn compute(
    vindex: &Vindex,
    cpu: &Cpu,
    options: &LabelOptions,
    progress: &dyn Progress,
) -> Result<LabelReport, VindexError> {
    let start = Instant::now();
    let layout = layout_of(vindex, options.top_tokens, options.score)?;
    let wanted = wanted_layers(&layout, options)?;
    for &layer in &wanted {
        // Fails for a vindex without down projections before anything is written.
        push_directions(vindex, layer, 0..0, &mut Directions::new(layout.hidden_size))?;
        require_downs(vindex, layer)?;
    }
    let (mut writer, missing) = prepare(vindex, &layout, &wanted, options.anew)?;
    let n = |layers: &[usize]| -> usize {
        layers.iter().map(|layer| layout.n_features[layer - layout.first_layer]).sum()
    };
    let mut report = LabelReport {
        features: n(&missing),
        kept: n(&wanted) - n(&missing),
        tokens: layout.vocab_size,
        top_tokens: layout.k,
        score: layout.score,
        rescored: 0,
        seconds: 0.0,
    };
    if !missing.is_empty() {
        progress.start("labelling", report.features as u64, "features");
        let outcome = label(vindex, cpu, &layout, &missing, &mut writer, progress);
        progress.finish();
        report.rescored = outcome?;
    }
    drop(writer);
    register(vindex, &layout, cpu.threads())?;
    report.seconds = start.elapsed().as_secs_f64();
    Ok(report)
}

/// The layers asked for, which must be among those of the file.
fn wanted_layers(layout: &Layout, options: &LabelOptions) -> Result<Vec<usize>, VindexError> {
    let all = layout.layers();
    let wanted = options.layers.clone().unwrap_or_else(|| all.clone());
    if wanted.start < all.start || wanted.end > all.end {
        return Err(VindexError::Option {
            option: format!("--layers {}..{}", wanted.start, wanted.end),
            why: format!("the vindex has layers {}..{}", all.start, all.end),
        });
    }
    Ok(wanted.collect())
}

fn require_downs(vindex: &Vindex, layer: usize) -> Result<(), VindexError> {
    for part in vindex.config().ffn_downs(layer) {
        vindex.require(larql_checkpoint::TensorId::layer(part.role, layer))?;
    }
    Ok(())
}

/// The writer, and those of the wanted layers that are missing.
fn prepare(
    vindex: &Vindex,
    layout: &Layout,
    wanted: &[usize],
    anew: bool,
) -> Result<(LabelWriter, Vec<usize>), VindexError> {
    let path = vindex.file_path(files::DOWN_META);
    if anew || !path.exists() {
        let writer = LabelWriter::create(&path, layout.clone())?;
        register(vindex, layout, 1)?;
        return Ok((writer, wanted.to_vec()));
    }
    let file = LabelFile::open(&path)?;
    let found = &file.layout;
    if (found.k, found.score) != (layout.k, layout.score) {
        return Err(VindexError::Option {
            option: format!("--top-tokens {} --score {}", layout.k, layout.score),
            why: format!(
                "the labels that are there have {} tokens by {}; ask for the same, or compute \
                 all anew with `larql labels {} --compute`",
                found.k,
                found.score,
                vindex.path().display()
            ),
        });
    }
    if found != layout {
        let why = "layers, features, vocabulary or width differ from the model's";
        return Err(corrupt(&path, "header", why));
    }
    let missing =
        wanted.iter().copied().filter(|&layer| file.state(layer) != LayerState::Done).collect();
    Ok((LabelWriter::open(&path, layout.clone())?, missing))
}

/// Labels the layers `missing`, group after group. Returns the number of float32 scores.
fn label(
    vindex: &Vindex,
    cpu: &Cpu,
    layout: &Layout,
    missing: &[usize],
    writer: &mut LabelWriter,
    progress: &dyn Progress,
) -> Result<u64, VindexError> {
    let unembedding = Unembedding::new(cpu, vindex.unembedding()?, layout.score)?;
    let mut directions = Directions::new(layout.hidden_size);
    let mut rescored = 0;
    for group in plan(layout, missing) {
        directions.clear();
        for span in &group {
            push_directions(vindex, span.layer, span.features.clone(), &mut directions)?;
        }
        let n = directions.len();
        let mut shown = 0;
        let found = unembedding.scan(&directions, layout.k, |tokens| {
            let features = n * tokens / unembedding.n_tokens();
            progress.advance((features - shown) as u64);
            shown = features;
            !progress.cancelled()
        })?;
        let Some((labels, scores)) = found else {
            let left = "layers that were finished keep their labels; run it again to go on";
            return Err(VindexError::Cancelled { left: left.to_owned() });
        };
        rescored += scores;
        let mut rest = labels.as_slice();
        for span in group {
            let (these, others) = rest.split_at(span.features.len());
            rest = others;
            if span.features.start == 0 {
                writer.begin_layer(span.layer)?;
            }
            writer.write(span.layer, span.features.start, these)?;
            if span.last {
                writer.finish_layer(span.layer)?;
            }
        }
    }
    Ok(rescored)
}

/// Cuts the layers into groups of features that are scanned together.
fn plan(layout: &Layout, layers: &[usize]) -> Vec<Vec<Span>> {
    let cols = layout.hidden_size;
    let bytes = Directions::bytes_per_direction(cols) + Queries::bytes_per_query(cols);
    let room = (GROUP_BYTES / bytes).clamp(GROUP_FEATURES.start, GROUP_FEATURES.end);
    let (mut groups, mut group, mut left) = (Vec::new(), Vec::new(), room);
    for &layer in layers {
        let n = layout.n_features[layer - layout.first_layer];
        // A layer that fits a group is not torn apart, so that fewer are lost to an interruption.
        if n > left && !group.is_empty() {
            groups.push(std::mem::take(&mut group));
            left = room;
        }
        let mut start = 0;
        loop {
            let end = n.min(start + left);
            group.push(Span { layer, features: start..end, last: end == n });
            left -= end - start;
            start = end;
            if start == n {
                break;
            }
            groups.push(std::mem::take(&mut group));
            left = room;
        }
    }
    if !group.is_empty() {
        groups.push(group);
    }
    groups
}

/// Enters the label file into the manifest: with its hash where it is complete, without where it
/// is still being filled.
pub(super) fn register(
    vindex: &Vindex,
    layout: &Layout,
    threads: usize,
) -> Result<(), VindexError> {
    let path = vindex.file_path(files::DOWN_META);
    let file = LabelFile::open(&path)?;
    let complete = layout.layers().all(|layer| file.state(layer) == LayerState::Done);
    let size = std::fs::metadata(&path).map_err(VindexError::io("read", &path))?.len();
    let mut entry = FileEntry {
        name: files::DOWN_META.to_owned(),
        kind: FileKind::DownMeta,
        size,
        modified: None,
        sha256: None,
        segments: Vec::new(),
    };
    if complete {
        let hashes = hash::hash_files(&[path], threads, &crate::NoProgress)?;
        if let Some(hash) = hashes.into_iter().next() {
            entry.sha256 = Some(hash.whole);
            entry.segments = hash.segments;
        }
    }
    enter(vindex.path(), entry)
}

/// Puts an entry into the manifest on disk, in place of one of the same name.
fn enter(dir: &Path, entry: FileEntry) -> Result<(), VindexError> {
    let mut manifest = Manifest::read(dir)?;
    match manifest.files.iter_mut().find(|file| file.name == entry.name) {
        Some(old) if *old == entry => return Ok(()),
        Some(old) => *old = entry,
        None => manifest.files.push(entry),
    }
    atomic::replace_file(&dir.join(files::MANIFEST), &manifest.to_vec()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::labels::file::Shape;

    fn layout(hidden_size: usize, n_features: Vec<usize>) -> Layout {
        let score = LabelScore::Cosine;
        Layout::new(Shape { k: 1, score, first_layer: 3, vocab_size: 10, hidden_size }, n_features)
    }

    #[test]
    fn small_layers_share_a_group_and_large_ones_are_cut() {
        let layout = layout(640, vec![3000, 3000, 3000, 20_000, 0, 5]);
        let groups = plan(&layout, &[3, 4, 5, 6, 7, 8]);
        let shape: Vec<Vec<_>> = groups
            .iter()
            .map(|g| g.iter().map(|s| (s.layer, s.features.clone(), s.last)).collect())
            .collect();
        assert_eq!(
            shape,
            [
                vec![(3, 0..3000, true), (4, 0..3000, true)],
                vec![(5, 0..3000, true)],
                vec![(6, 0..8192, false)],
                vec![(6, 8192..16_384, false)],
                vec![(6, 16_384..20_000, true), (7, 0..0, true), (8, 0..5, true)],
            ]
        );
    }

    #[test]
    fn wide_models_have_small_groups_and_never_tiny_ones() {
        let groups = plan(&layout(8192, vec![28_672]), &[3]);
        assert!(groups.iter().all(|g| g[0].features.len() <= 2048));
        assert_eq!(groups.len(), 14);
    }
}
