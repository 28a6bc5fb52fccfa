//! `larql why VINDEX PROMPT`: the features that speak for a token, and what becomes of it without
//! them.

use std::io;

use larql_checkpoint::tokenizer::EncodeOptions;
use larql_inference::Model;
use larql_inference::analysis::{
    Attribution, Cause, Causes, ReferenceMeans, Snapshot, everything_else, log_prob, logits_with,
};
use larql_vindex::{FeatureMeans, VindexError};
use serde::Serialize;

use super::ablate::{self, Ablation};
use super::look;
use crate::args::Why;
use crate::context::Context;
use crate::error::Failure;
use crate::progress::Bars;
use crate::render::{Column, Page, Report, Table, units};
use crate::session::{LabelRow, Session, TokenRow, tokens_of};

/// What features usually do is measured on this: prose, code, tables and dialogue in several
/// languages, written for this purpose.
const TEXT: &str = include_str!("../../assets/reference.txt");
/// What stands between its documents.
const BETWEEN: &str = "\n%%\n";

/// What the numbers mean; said with every answer.
const MEANING: &str = "\
Score: (activation - usual) x what a unit of it adds to the logit of the token, less that of the
alternative, directly: the final norm's scale held fast, later layers left out. Labels say what a
feature writes, not when it fires. Only --ablate says what really happens without it.";

#[derive(Serialize)]
struct Answer {
    /// The tokens up to the position.
    tokens: Vec<TokenRow>,
    position: usize,
    token: TokenRow,
    /// Natural logarithm of its probability.
    log_prob: f64,
    /// `null`: everything else, each token with its probability.
    against: Option<TokenRow>,
    usual: Usual,
    /// The sums of all features' positive and negative scores.
    total_for: f64,
    total_against: f64,
    /// Those that speak most for the token.
    speak_for: Vec<CauseRow>,
    /// Those that speak most against it.
    speak_against: Vec<CauseRow>,
    ablation: Option<Ablation>,
}

/// What activations are compared with.
#[derive(Serialize)]
#[serde(tag = "by", rename_all = "snake_case")]
pub(super) enum Usual {
    /// The means over the reference text.
    Reference { positions: u64 },
    /// What features do at the end of other texts.
    Contrast { prompts: Vec<String> },
}

#[derive(Serialize)]
struct CauseRow {
    layer: usize,
    feature: usize,
    activation: f32,
    usual: f32,
    score: f32,
    label: Option<LabelRow>,
}

pub(crate) fn run(args: &Why, context: &Context) -> Result<(), Failure> {
    let session = Session::open(&args.vindex, context)?;
    let mut tokens = look::prompt(&session, &args.prompt)?;
    let position = look::position(&tokens, args.position)?;
    tokens.truncate(position + 1);
    let word = |word: &Option<String>, flag: &str| {
        word.as_deref().map(|word| look::one_token(&session, word, flag)).transpose()
    };
    let (token, against) = (word(&args.token, "--token")?, word(&args.against, "--against")?);
    let model = look::load(&session)?;
    let ids = look::ids(&tokens);
    let (usual, baseline) = usual(args, &session, &model, context)?;

    let seen = Snapshot::take(&model, &ids)?;
    let logits = logits_with(&model, &ids, &[])?;
    let token = match token {
        Some(token) => token,
        None => session.token(look::best(&logits)?)?,
    };
    let mut direction = session.search().unembedding(token.id)?;
    let alternative = match &against {
        Some(against) => session.search().unembedding(against.id)?,
        None => everything_else(&model, &logits, token.id)?,
    };
    direction.iter_mut().zip(&alternative).for_each(|(d, a)| *d -= a);
    let causes = Causes::of(&Attribution::of(&model, &seen, &direction)?, &seen, &baseline);
    let ablation = args.ablate.map(|n| {
        let chosen = causes.speaking_for(n.get())?;
        ablate::run(&session, &model, &ids, token.id, &chosen, causes.all())
    });
    let sum = |keep: fn(f64) -> bool| {
        causes.all().iter().map(|cause| f64::from(cause.score)).filter(|&s| keep(s)).sum()
    };
    context.emit(&Answer {
        position,
        log_prob: log_prob(&logits, token.id),
        total_for: sum(|score| score > 0.0),
        total_against: sum(|score| score < 0.0),
        speak_for: rows(&session, &causes.speaking_for(args.top)?)?,
        speak_against: rows(&session, &causes.speaking_against(args.top)?)?,
        ablation: ablation.transpose()?,
        tokens,
        token,
        against,
        usual,
    })
}

/// What activations are compared with, and that: `[n_features]` a layer.
fn usual(
    args: &Why,
    session: &Session<'_>,
    model: &Model<'_>,
    context: &Context,
) -> Result<(Usual, Vec<Vec<f32>>), Failure> {
    if args.contrast.is_empty() {
        let means = reference(session, model, context)?;
        return Ok((Usual::Reference { positions: means.positions }, means.layers));
    }
    let config = model.config();
    let mut sums: Vec<Vec<f32>> =
        (0..config.n_layers).map(|layer| vec![0.0; config.n_features(layer)]).collect();
    for prompt in &args.contrast {
        let seen = Snapshot::take(model, &look::ids(&look::prompt(session, prompt)?))?;
        for (sums, layer) in sums.iter_mut().zip(&seen.layers) {
            sums.iter_mut().zip(&layer.activations).for_each(|(sum, a)| *sum += a);
        }
    }
    let n = args.contrast.len() as f32;
    sums.iter_mut().flatten().for_each(|sum| *sum /= n);
    Ok((Usual::Contrast { prompts: args.contrast.clone() }, sums))
}

/// The means over the reference text; where the vindex has none they are taken, and kept in it.
fn reference(
    session: &Session<'_>,
    model: &Model<'_>,
    context: &Context,
) -> Result<ReferenceMeans, Failure> {
    let vindex = &session.vindex;
    if let Some(stored) = FeatureMeans::open(vindex, TEXT)? {
        let layers = (0..model.config().n_layers).map(|layer| stored.layer(layer)).collect();
        return Ok(ReferenceMeans { positions: stored.positions(), layers });
    }
    context.remark("taking the mean activations of all features, once for this vindex");
    let tokenizer = session.tokenizer()?;
    let most = model.config().context_length;
    let documents = TEXT.trim_end().split(BETWEEN).map(|document| {
        let mut tokens = tokenizer.encode(document, EncodeOptions::PROMPT)?;
        tokens.truncate(most);
        Ok(tokens)
    });
    let documents = documents.collect::<Result<Vec<_>, Failure>>()?;
    let means = ReferenceMeans::take(model, &documents, &Bars::new(context))?;
    match FeatureMeans::write(vindex, TEXT, means.positions, &means.layers) {
        // A vindex that cannot be written to is no reason not to answer.
        Err(error @ VindexError::Io { .. }) => {
            context.remark(&format!("the means are used but not kept: {error}"));
        }
        stored => drop(stored?),
    }
    Ok(means)
}

fn rows(session: &Session<'_>, causes: &[Cause]) -> Result<Vec<CauseRow>, Failure> {
    let ids: Vec<_> = causes.iter().map(|cause| (cause.layer, cause.feature)).collect();
    let row = |(cause, label): (&Cause, Option<LabelRow>)| CauseRow {
        layer: cause.layer,
        feature: cause.feature,
        activation: cause.activation,
        usual: cause.baseline,
        score: cause.score,
        label,
    };
    Ok(causes.iter().zip(session.labels_of(&ids)?).map(row).collect())
}

impl Report for Answer {
    fn draw(&self, page: &mut Page<'_>) -> io::Result<()> {
        let token = units::token(&self.token.text);
        page.line(&format!("tokens: {}", look::numbered(&self.tokens)))?;
        page.line(&format!(
            "position {}; why {token} ({}), probability {:.4}, and not {}?",
            self.position,
            self.token.id,
            self.log_prob.exp(),
            match &self.against {
                Some(against) => format!("{} ({})", units::token(&against.text), against.id),
                None => "anything else".to_owned(),
            },
        ))?;
        page.line(&match &self.usual {
            Usual::Reference { positions } => format!(
                "usual: the mean over {} positions of the reference text",
                units::count(*positions)
            ),
            Usual::Contrast { prompts } => format!("usual: at the end of {prompts:?}"),
        })?;
        page.heading(&format!("Speak for {token} (all that do: {:+.2})", self.total_for))?;
        page.table(&causes_table(&self.speak_for))?;
        page.heading(&format!("Speak against it (all that do: {:+.2})", self.total_against))?;
        page.table(&causes_table(&self.speak_against))?;
        if let Some(ablation) = &self.ablation {
            ablation.draw(page, &token)?;
        }
        page.note(MEANING)
    }
}

fn causes_table(rows: &[CauseRow]) -> Table {
    let mut table = Table::new([
        Column::number("layer"),
        Column::number("feature"),
        Column::number("activation"),
        Column::number("usual"),
        Column::number("score"),
        Column::text("promotes"),
        Column::text("suppresses"),
    ]);
    for row in rows {
        // What more of it than usual writes.
        let negative = row.activation < row.usual;
        table.row([
            format!("L{}", row.layer),
            row.feature.to_string(),
            format!("{:+.3}", row.activation),
            format!("{:+.3}", row.usual),
            format!("{:+.3}", row.score),
            tokens_of(row.label.as_ref(), negative, 3),
            tokens_of(row.label.as_ref(), !negative, 3),
        ]);
    }
    table
}
