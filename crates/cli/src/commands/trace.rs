//! `larql trace VINDEX PROMPT`: how a prediction comes about, layer by layer.

use std::io;

use larql_inference::Model;
use larql_inference::analysis::{
    Attribution, LayerAttribution, LayerSnapshot, LensRow, Residuals, Snapshot, TokenChance, lens,
};
use serde::Serialize;

use super::look;
use crate::args::Trace;
use crate::context::Context;
use crate::error::Failure;
use crate::render::{Column, Page, Report, Table, svg, units};
use crate::session::{LabelRow, Session, TokenRow, tokens_of};

/// What the numbers mean; said with every trace.
const MEANING: &str = "\
Lens: what the model would say if the residual went to the final norm after this layer. Share:
attention's part of what the layer adds to the residual, along that addition; the FFN's is the rest.
Logit: what attention and FFN add to the logit directly, the final norm's scale held fast; what they
do through later layers is counted there. A feature promotes and suppresses as it fires here.";

#[derive(Serialize)]
struct Traced {
    /// The tokens up to the position.
    tokens: Vec<TokenRow>,
    position: usize,
    /// The token whose logit is followed.
    token: TokenRow,
    /// The embedding, then every layer.
    layers: Vec<LayerRow>,
    attribution: Sum,
    /// The features that add most to the logit, or take most off it.
    features: Vec<FeatureRow>,
}

#[derive(Serialize)]
struct LayerRow {
    /// `null`: the embedding, before the first layer.
    layer: Option<usize>,
    top: Vec<ChanceRow>,
    /// How many tokens are more likely than the one followed, and its probability.
    rank: usize,
    probability: f64,
    /// Attention's part of the layer's addition; `null` for the embedding.
    attention_share: Option<f64>,
    /// What attention adds to the logit; for the embedding, what that adds stands under `ffn`.
    attention: Option<f64>,
    ffn: Option<f64>,
}

#[derive(Serialize)]
struct ChanceRow {
    #[serde(flatten)]
    token: TokenRow,
    probability: f64,
}

/// The parts of the logit.
#[derive(Serialize)]
struct Sum {
    embedding: f64,
    attention: f64,
    ffn: f64,
    norm_bias: f64,
    /// All of them together.
    sum: f64,
    /// The logit by the model, before any soft-cap.
    logit: f64,
    /// Of `ffn`: what features and biases do not account for, as activations are rounded.
    rounding: f64,
}

#[derive(Serialize)]
struct FeatureRow {
    layer: usize,
    feature: usize,
    activation: f32,
    /// What it adds to the logit.
    logit: f32,
    label: Option<LabelRow>,
}

pub(crate) fn run(args: &Trace, context: &Context) -> Result<(), Failure> {
    let session = Session::open(&args.vindex, context)?;
    let mut tokens = look::prompt(&session, &args.prompt)?;
    let position = look::position(&tokens, args.position)?;
    tokens.truncate(position + 1);
    let token = args.token.as_deref().map(|word| look::one_token(&session, word, "--token"));
    let token = token.transpose()?;
    let model = look::load(&session)?;
    let seen = Snapshot::take(&model, &look::ids(&tokens))?;
    let token = match token {
        Some(token) => token,
        None => says(&session, &lens(&model, seen.residual(), None, 1)?)?,
    };
    let mut residuals = seen.embedding.clone();
    seen.layers.iter().for_each(|layer| residuals.extend_from_slice(&layer.resid_post));
    let rows = lens(&model, &residuals, Some(token.id), args.top.max(1))?;
    let direction = session.search().unembedding(token.id)?;
    let attribution = Attribution::of(&model, &seen, &direction)?;
    if let Some(path) = &args.svg {
        let drawing = draw(&session, &model, &tokens, &rows, &attribution, &token)?;
        look::write_svg(path, &drawing, context)?;
    }
    context.emit(&Traced {
        layers: layer_rows(&session, &seen, &rows, &attribution)?,
        features: features(&session, &seen, &attribution, args.top)?,
        attribution: Sum::of(&attribution),
        tokens,
        position,
        token,
    })
}

/// The token that the last row finds most likely.
fn says(session: &Session<'_>, rows: &[LensRow]) -> Result<TokenRow, Failure> {
    let best = rows.last().and_then(|row| row.top.first()).map_or(0, |best| best.token);
    session.token(best)
}

fn layer_rows(
    session: &Session<'_>,
    seen: &Snapshot,
    rows: &[LensRow],
    attribution: &Attribution,
) -> Result<Vec<LayerRow>, Failure> {
    let chance = |chance: &TokenChance| -> Result<ChanceRow, Failure> {
        let token = session.token(chance.token)?;
        Ok(ChanceRow { token, probability: chance.log_prob.exp() })
    };
    let row = |(i, row): (usize, &LensRow)| -> Result<LayerRow, Failure> {
        let layer = i.checked_sub(1);
        let terms = layer.and_then(|layer| attribution.layers.get(layer));
        let parts = layer.and_then(|layer| seen.layers.get(layer));
        Ok(LayerRow {
            layer,
            top: row.top.iter().map(chance).collect::<Result<_, _>>()?,
            rank: row.rank.unwrap_or_default(),
            probability: row.chosen.map_or(0.0, |chosen| chosen.log_prob.exp()),
            attention_share: parts.map(LayerSnapshot::attention_share),
            attention: terms.map(|terms| terms.attention),
            ffn: Some(terms.map_or(attribution.embedding, |terms| terms.ffn)),
        })
    };
    rows.iter().enumerate().map(row).collect()
}

/// The `top` features with the largest terms, with their labels.
fn features(
    session: &Session<'_>,
    seen: &Snapshot,
    attribution: &Attribution,
    top: usize,
) -> Result<Vec<FeatureRow>, Failure> {
    let found = attribution.strongest(top)?;
    let labels = session.labels_of(&found.iter().map(|f| (f.0, f.1)).collect::<Vec<_>>())?;
    let row = |((layer, feature, logit), label): ((usize, usize, f32), Option<LabelRow>)| {
        let activation = seen.layers[layer].activations[feature];
        FeatureRow { layer, feature, activation, logit, label }
    };
    Ok(found.into_iter().zip(labels).map(row).collect())
}

impl Sum {
    fn of(found: &Attribution) -> Sum {
        Sum {
            embedding: found.embedding,
            attention: found.layers.iter().map(|layer| layer.attention).sum(),
            ffn: found.layers.iter().map(|layer| layer.ffn).sum(),
            norm_bias: found.norm_bias,
            sum: found.sum(),
            logit: found.logit,
            rounding: found.layers.iter().map(LayerAttribution::rounding).sum(),
        }
    }
}

/// A chance in whole percent.
fn whole_percent(chance: f64) -> String {
    let percent = chance * 100.0;
    if percent < 0.5 { "<1 %".to_owned() } else { format!("{percent:.0} %") }
}

/// What every layer would say at every position, with the terms of the logit beside it.
fn draw(
    session: &Session<'_>,
    model: &Model<'_>,
    tokens: &[TokenRow],
    last: &[LensRow],
    attribution: &Attribution,
    token: &TokenRow,
) -> Result<String, Failure> {
    let from = tokens.len().saturating_sub(svg::MOST_COLUMNS);
    let residuals = Residuals::take(model, &look::ids(tokens), from)?;
    let mut cells = Vec::new();
    for layer in 0..model.config().n_layers {
        let mut rows = lens(model, residuals.after(layer), None, 1)?;
        // The last column is that of the table.
        if let (Some(row), Some(exact)) = (rows.last_mut(), last.get(layer + 1)) {
            row.top.clone_from(&exact.top);
        }
        let cell = |row: &LensRow| -> Result<svg::Cell, Failure> {
            let Some(best) = row.top.first() else { return Ok(svg::Cell::default()) };
            let text = units::token(&session.token(best.token)?.text);
            let share = best.log_prob.exp();
            let framed = best.token == token.id;
            Ok(svg::Cell { text, detail: whole_percent(share), shade: share, framed })
        };
        cells.push(rows.iter().map(cell).collect::<Result<Vec<_>, Failure>>()?);
    }
    let terms = attribution.layers.iter().map(|layer| [layer.attention, layer.ffn]);
    Ok(svg::Grid {
        title: "What each layer would say".to_owned(),
        subtitle: svg::note_of_columns(
            from,
            "top token after each layer, through the final norm: the darker, the likelier",
        ),
        columns: tokens[from..].iter().map(|token| units::token(&token.text)).collect(),
        rows: (0..model.config().n_layers).map(|layer| format!("L{layer}")).collect(),
        cells,
        bars: Some(svg::Bars {
            title: format!("adds to the logit of {}", units::token(&token.text)),
            names: ["attention", "FFN"],
            values: terms.collect(),
        }),
    }
    .render())
}

impl Report for Traced {
    fn draw(&self, page: &mut Page<'_>) -> io::Result<()> {
        page.line(&format!("tokens: {}", look::numbered(&self.tokens)))?;
        let token = units::token(&self.token.text);
        page.line(&format!("position {}; followed: {token} ({})", self.position, self.token.id))?;
        page.heading("After each layer")?;
        let mut table = Table::new([
            Column::number("layer"),
            Column::text("the model would say"),
            Column::number("rank"),
            Column::number("prob"),
            Column::number("attn share"),
            Column::number("attn logit"),
            Column::number("ffn logit"),
        ]);
        let signed = |value: Option<f64>| value.map_or(String::new(), |v| format!("{v:+.2}"));
        for row in &self.layers {
            let top = row.top.iter().take(3).map(|chance| {
                format!(
                    "{} {}",
                    units::token(&chance.token.text),
                    whole_percent(chance.probability)
                )
            });
            table.row([
                row.layer.map_or("embed".to_owned(), |layer| format!("L{layer}")),
                top.collect::<Vec<_>>().join("  "),
                units::count(row.rank as u64 + 1),
                format!("{:.4}", row.probability),
                row.attention_share
                    .map_or(String::new(), |share| format!("{:.0} %", share * 100.0)),
                signed(row.attention),
                signed(row.ffn),
            ]);
        }
        page.table(&table)?;
        page.heading(&format!("The logit of {token}"))?;
        let sum = &self.attribution;
        let mut fields = vec![
            ("embedding", format!("{:+.3}", sum.embedding)),
            ("attention", format!("{:+.3}", sum.attention)),
            ("FFN", format!("{:+.3}", sum.ffn)),
        ];
        if sum.norm_bias != 0.0 {
            fields.push(("norm's bias", format!("{:+.3}", sum.norm_bias)));
        }
        fields.push(("sum", format!("{:+.3}", sum.sum)));
        fields.push(("model", format!("{:+.3} (before any soft-cap)", sum.logit)));
        page.fields(&fields)?;
        page.heading("Features with the largest part in it")?;
        page.table(&self.features_table())?;
        page.note(&format!(
            "{MEANING}\nFeatures leave {:+.3} of the FFNs unexplained: the forward pass rounds activations.",
            sum.rounding
        ))
    }
}

impl Traced {
    fn features_table(&self) -> Table {
        let mut table = Table::new([
            Column::number("layer"),
            Column::number("feature"),
            Column::number("activation"),
            Column::number("logit"),
            Column::text("promotes"),
            Column::text("suppresses"),
        ]);
        for row in &self.features {
            table.row([
                format!("L{}", row.layer),
                row.feature.to_string(),
                format!("{:+.3}", row.activation),
                format!("{:+.3}", row.logit),
                tokens_of(row.label.as_ref(), row.activation < 0.0, 3),
                tokens_of(row.label.as_ref(), row.activation >= 0.0, 3),
            ]);
        }
        table
    }
}
