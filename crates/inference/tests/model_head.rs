//! Gemma 3 270M: real hidden states find the same tokens by the planes of the LM head as by a scan
//! of all its rows. `cargo test --release -p larql-inference --test model_head -- --nocapture`
//! prints what it took.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]
#![allow(clippy::disallowed_methods, reason = "tests may read the environment; libraries may not")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use larql_checkpoint::tokenizer::EncodeOptions;
use larql_compute::{Cpu, Order, bandwidth};
use larql_inference::{CacheOptions, KvDtype, Model, NoHooks, Overflow};
use larql_vindex::{ExtractOptions, HeadPath, NoProgress, Vindex, build_head_planes};

/// Texts of the kinds that models are asked about; none of them is what the columns are sorted by.
const TEXTS: [&str; 6] = [
    "The Treaty of Westphalia was signed in 1648 and ended the Thirty Years' War, which had \
     devastated large parts of central Europe. Historians still argue about how many people died.",
    "import numpy as np\n\ndef softmax(x):\n    e = np.exp(x - x.max(axis=-1, keepdims=True))\n    \
     return e / e.sum(axis=-1, keepdims=True)\n",
    "- Did you see the match last night?\n- Only the second half. I was stuck at work until eight.",
    "Die Sonne scheint, aber es ist kalt. El perro de mi hermana duerme en el sofá todo el día. \
     東京は日本の首都です。",
    "Let x + 3 = 11. Then x = 8, and 2x = 16. A square with side 8 has an area of 64.",
    "Once upon a time there was a fox who could not sleep. Every night she walked to the edge of \
     the forest and counted the lights of the village, and every night there was one more than \
     before. On the twelfth night she went down the hill to find out who had lit it.",
];

fn demo_model() -> Option<PathBuf> {
    let cache = || {
        let home = std::env::var_os("HOME").unwrap_or_default();
        Path::new(&home).join(".cache/larql/gemma-3-270m-q4_k_m.gguf")
    };
    let path = std::env::var_os("LARQL_TEST_MODEL").map_or_else(cache, PathBuf::from);
    let skip = std::env::var_os("LARQL_SKIP_MODEL_TESTS").is_some_and(|value| value == "1");
    assert!(
        path.is_file() || skip,
        "{} is not there: `make test` fetches it; LARQL_SKIP_MODEL_TESTS=1 skips this test",
        path.display()
    );
    path.is_file().then_some(path)
}

/// The hidden states after every token of a text, `[n, hidden_size]`.
fn hidden(model: &Model<'_>, text: &str) -> Vec<f32> {
    let tokens = model.vindex().tokenizer().unwrap().encode(text, EncodeOptions::PROMPT).unwrap();
    let options = CacheOptions { context: 2048, kv: KvDtype::F32, overflow: Overflow::Error };
    let mut state = model.state(options).unwrap();
    model.feed_all(&mut state, &tokens[..tokens.len().min(2048)], &mut NoHooks).unwrap();
    state.hidden().to_vec()
}

fn median<T: Copy + Ord>(values: &mut [T]) -> T {
    values.sort_unstable();
    values[values.len() / 2]
}

#[test]
fn model_planes_find_what_a_scan_finds() {
    let Some(source) = demo_model() else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("gemma.vindex");
    larql_vindex::extract(&source, &path, &ExtractOptions::default(), &NoProgress).unwrap();
    let cpu = Cpu::new(None, Some(2)).unwrap();
    let vindex = Vindex::open(&path).unwrap();
    let (states, width) = {
        let model = Model::load(&vindex, &cpu).unwrap();
        assert!(!model.head().has_planes());
        let width = model.config().hidden_size;
        let mut mean_abs = vec![0.0; width];
        for h in hidden(&model, include_str!("../../../ARCHITECTURE.md")).chunks_exact(width) {
            mean_abs.iter_mut().zip(h).for_each(|(sum, h)| *sum += h.abs());
        }
        build_head_planes(&vindex, &cpu, &mean_abs, &NoProgress).unwrap();
        let states: Vec<f32> = TEXTS.iter().flat_map(|text| hidden(&model, text)).collect();
        (states, width)
    };
    let head = vindex.lm_head().unwrap();
    assert!(head.has_planes() && states.len() / width > 200, "{}", states.len() / width);
    let mut expected = Vec::new();
    for h in states.chunks_exact(width) {
        expected.push(cpu.top_k_rows(head.rows(), h, 40, Order::Signed).unwrap());
    }
    for k in [1, 40] {
        let (mut times, mut rescored, mut scans) = (Vec::new(), Vec::new(), 0);
        for (h, expected) in states.chunks_exact(width).zip(&expected) {
            let start = Instant::now();
            let found = head.top_k(&cpu, h, k).unwrap();
            times.push(start.elapsed());
            assert_eq!(found.tokens, expected[..k]);
            rescored.push(found.rescored_rows);
            scans += usize::from(found.path == HeadPath::Scan);
        }
        let time = median(&mut times);
        let p95 = {
            rescored.sort_unstable();
            rescored[rescored.len() * 95 / 100]
        };
        println!(
            "top {k} of {} states: {time:?}, rescored {} (median) {p95} (p95), {scans} scans",
            rescored.len(),
            median(&mut rescored),
        );
    }
    for threads in [1, 2] {
        let cpu = Cpu::new(None, Some(threads)).unwrap();
        let of = |what: &str, run: &dyn Fn(&[f32]) -> u64| {
            let mut bytes = 0;
            let mut times: Vec<Duration> = states
                .chunks_exact(width)
                .step_by(20)
                .map(|h| {
                    let start = Instant::now();
                    bytes = run(h);
                    start.elapsed()
                })
                .collect();
            let seconds = median(&mut times).as_secs_f64();
            println!(
                "{threads} threads, {what}: {:.2} ms, {:.1} MB, {:.1} GB/s",
                seconds * 1e3,
                bytes as f64 / 1e6,
                bytes as f64 / seconds / 1e9
            );
        };
        of("planes, top 1", &|h| head.top_k(&cpu, h, 1).unwrap().bytes_read);
        of("planes, top 40", &|h| head.top_k(&cpu, h, 40).unwrap().bytes_read);
        of("scan, top 40", &|h| {
            cpu.top_k_rows(head.rows(), h, 40, Order::Signed).unwrap();
            head.rows().bytes().len() as u64
        });
        println!("{threads} threads read {:.1} GB/s", bandwidth::measure(&cpu, 256 << 20));
    }
    let text = std::fs::read(path.join("lm_head.planes")).unwrap();
    let mut broken = text.clone();
    broken[40] ^= 1;
    std::fs::write(path.join("lm_head.planes"), &broken).unwrap();
    let error = vindex.lm_head().unwrap_err().to_string();
    assert!(error.contains("another LM head") && error.contains("larql lm-head"), "{error}");
}
