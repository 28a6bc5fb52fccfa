//! Flags of the commands that run the model.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use larql_inference::sample::SamplerOptions;
use larql_inference::{FfnMode, Keep, KvDtype};

/// Positions that a text may have unless `--context` says otherwise (or the model has fewer).
pub(crate) const DEFAULT_CONTEXT: usize = 4096;

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// The vindex
    pub(crate) vindex: PathBuf,
    /// The text to continue; `-` reads it from stdin (one line break at its end is dropped)
    pub(crate) prompt: String,
    /// Most tokens to generate
    #[arg(short = 'n', long, value_name = "N", default_value_t = 128)]
    pub(crate) tokens: usize,
    /// Put no BOS before the prompt, and read control tokens (`<start_of_turn>`) that are written
    /// in it
    #[arg(long)]
    pub(crate) raw: bool,
    /// Save what flows at every point of the forward pass, for every token that was run, as
    /// safetensors: F32, `[n, hidden_size]`, names such as `blocks.3.resid_post`; the features'
    /// activations `[n, n_features]` as `blocks.3.mlp_post`
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) sampling: Sampling,
    #[command(flatten)]
    pub(crate) running: Running,
}

/// How the next token is chosen.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sampling (order: penalty, top-k, top-p, min-p, temperature)")]
pub(crate) struct Sampling {
    /// Flatten (above 1) or sharpen (below 1) the choice; 0 always takes the most likely token
    #[arg(long, value_name = "T", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) temperature: f32,
    /// Choose among the K most likely tokens; 0: among all [default: 40]
    #[arg(long, value_name = "K")]
    pub(crate) top_k: Option<usize>,
    /// Choose among the fewest tokens that together have the probability P [default: 0.95]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) top_p: Option<f32>,
    /// Choose among tokens at least P times as likely as the best [default: 0.05]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) min_p: Option<f32>,
    /// Make tokens among the last 64 less likely by this factor; 1 does nothing
    #[arg(long, value_name = "R", default_value_t = 1.0, allow_negative_numbers = true)]
    pub(crate) repeat_penalty: f32,
    /// Draw the same tokens again [default: another seed each time, shown with the figures]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// End the text before this string, or at the control token of this name (may be repeated)
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) stop: Vec<String>,
}

impl Sampling {
    /// The sampler's options; the error names a flag that would have no effect.
    pub(crate) fn options(&self, seed: u64) -> Result<SamplerOptions, &'static str> {
        if self.temperature == 0.0 {
            let without_effect = [
                ("--top-k", self.top_k.is_some()),
                ("--top-p", self.top_p.is_some()),
                ("--min-p", self.min_p.is_some()),
                ("--seed", self.seed.is_some()),
            ];
            if let Some((flag, _)) = without_effect.into_iter().find(|(_, given)| *given) {
                return Err(flag);
            }
        }
        let default = SamplerOptions::default();
        Ok(SamplerOptions {
            temperature: self.temperature,
            top_k: self.top_k.unwrap_or(default.top_k),
            top_p: self.top_p.unwrap_or(default.top_p),
            min_p: self.min_p.unwrap_or(default.min_p),
            repetition_penalty: self.repeat_penalty,
            seed,
            ..default
        })
    }
}

/// How the model is run.
#[derive(Debug, Args)]
#[command(next_help_heading = "Running")]
pub(crate) struct Running {
    /// Positions that the text may have (`8192`), and what happens beyond: an error, or with
    /// `shift` (`shift`, `8192,shift`) the older half is forgotten [default: 4096, or the model's
    /// where that is less]
    #[arg(long, value_name = "N|shift", default_value = "", hide_default_value = true)]
    pub(crate) context: ContextArg,
    /// How keys and values are stored: f16, q8_0 or f32
    #[arg(long, value_name = "DTYPE", default_value = "f16", value_parser = kv)]
    pub(crate) kv: KvDtype,
    /// Which features of every FFN take part: `dense` (all), `walk:K` or `walk:P%` (those of
    /// largest contribution: an approximation)
    #[arg(long, value_name = "MODE", default_value = "dense", value_parser = ffn)]
    pub(crate) ffn: FfnMode,
}

/// `--context`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ContextArg {
    /// Positions, where they were given.
    pub(crate) positions: Option<usize>,
    /// Whether the oldest half is forgotten when they are used up.
    pub(crate) shift: bool,
}

impl FromStr for ContextArg {
    type Err = String;

    fn from_str(text: &str) -> Result<ContextArg, String> {
        let mut parsed = ContextArg { positions: None, shift: false };
        for part in text.split(',').filter(|_| !text.is_empty()) {
            match part.parse() {
                Ok(positions) if positions > 0 && parsed == ContextArg::default() => {
                    parsed.positions = Some(positions);
                }
                Err(_) if part == "shift" && !parsed.shift => parsed.shift = true,
                _ => return Err("a context is written 8192, shift or 8192,shift".to_owned()),
            }
        }
        Ok(parsed)
    }
}

pub(super) fn kv(name: &str) -> Result<KvDtype, String> {
    match name {
        "f16" => Ok(KvDtype::F16),
        "q8_0" => Ok(KvDtype::Q8_0),
        "f32" => Ok(KvDtype::F32),
        _ => Err("keys and values are stored in f16, q8_0 or f32".to_owned()),
    }
}

pub(super) fn ffn(mode: &str) -> Result<FfnMode, String> {
    let wrong =
        || "a mode is written dense, walk:K (K of 1 or more) or walk:P% (P above 0, at most 100)";
    if mode == "dense" {
        return Ok(FfnMode::Dense);
    }
    let kept = mode.strip_prefix("walk:").ok_or_else(wrong)?;
    Ok(FfnMode::Walk(parse_keep(kept).ok_or_else(wrong)?))
}

/// How many features a walk keeps.
pub(super) fn keep(kept: &str) -> Result<Keep, String> {
    parse_keep(kept).ok_or_else(|| {
        "features are kept by number (1 or more) or percent (P%, P above 0, at most 100)".to_owned()
    })
}

fn parse_keep(kept: &str) -> Option<Keep> {
    match kept.strip_suffix('%') {
        Some(percent) => {
            let percent: f32 = percent.parse().ok()?;
            (percent > 0.0 && percent <= 100.0).then_some(Keep::Percent(percent))
        }
        None => kept.parse().ok().filter(|&count| count > 0).map(Keep::Count),
    }
}

/// A mode as [`ffn`] reads it.
pub(crate) fn ffn_name(mode: FfnMode) -> String {
    match mode {
        FfnMode::Dense => "dense".to_owned(),
        FfnMode::Walk(Keep::Count(count)) => format!("walk:{count}"),
        FfnMode::Walk(Keep::Percent(percent)) => format!("walk:{percent}%"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_are_a_number_shift_or_both() {
        let parsed = |text: &str| text.parse::<ContextArg>().ok().map(|c| (c.positions, c.shift));
        assert_eq!(parsed(""), Some((None, false)));
        assert_eq!(parsed("8192"), Some((Some(8192), false)));
        assert_eq!(parsed("shift"), Some((None, true)));
        assert_eq!(parsed("512,shift"), Some((Some(512), true)));
        for wrong in ["0", "-1", "x", "512,", "shift,shift", "1,2", ",", "shift,512", "1e3"] {
            assert_eq!(parsed(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn ffn_modes_are_dense_or_a_walk() {
        for name in ["dense", "walk:64", "walk:12.5%", "walk:100%"] {
            assert_eq!(ffn(name).map(ffn_name), Ok(name.to_owned()));
        }
        assert_eq!(ffn("dense"), Ok(FfnMode::Dense));
        assert_eq!(ffn("walk:64"), Ok(FfnMode::Walk(Keep::Count(64))));
        assert_eq!(ffn("walk:12.5%"), Ok(FfnMode::Walk(Keep::Percent(12.5))));
        for wrong in ["", "walk", "walk:", "walk:0", "walk:-1", "walk:0%", "walk:101%", "walk:NaN%"]
        {
            assert!(ffn(wrong).is_err(), "{wrong:?}");
        }
    }
}
