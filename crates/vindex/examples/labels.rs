//! Computes the labels of a vindex and shows some: `labels NAME.vindex [SCORE] [LAYER:FEATURE …]`.

use larql_compute::Cpu;
use larql_vindex::labels::{LabelOptions, LabelScore, Labels, compute};
use larql_vindex::{NoProgress, Vindex};

#[allow(clippy::print_stdout, reason = "an example shows its results")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, rest @ ..] = arguments.as_slice() else {
        return Err("usage: labels NAME.vindex [SCORE] [LAYER:FEATURE ...]".into());
    };
    let score = rest.iter().find_map(|name| LabelScore::from_name(name)).unwrap_or_default();
    let vindex = Vindex::open(path)?;
    let cpu = Cpu::new(None, None)?;
    let options = LabelOptions { score, ..LabelOptions::default() };
    let report = compute(&vindex, &cpu, &options, &NoProgress)?;
    println!("{report:?}");

    let labels = Labels::open(&Vindex::open(path)?)?.ok_or("no labels")?;
    let tokenizer = vindex.tokenizer()?;
    for place in rest.iter().filter_map(|text| text.split_once(':')) {
        let (layer, feature) = (place.0.parse()?, place.1.parse()?);
        let Some(found) = labels.get(layer, feature)? else { continue };
        let text = |tokens: &mut dyn Iterator<Item = (u32, f32)>| -> String {
            tokens
                .map(|(token, score)| format!(" {:?} {score:.2}", tokenizer.token_text(token)))
                .collect()
        };
        println!("L{layer} F{feature} +{}", text(&mut found.promoted()));
        println!("L{layer} F{feature} -{}", text(&mut found.suppressed()));
    }
    Ok(())
}
