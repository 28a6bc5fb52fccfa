//! What the recorder writes is what flowed, for every point, over several feeds.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use std::collections::{BTreeMap, HashMap};

use larql_inference::{Hooks, InferenceError, KvDtype, Model, Point, Recorder};
use safetensors::SafeTensors;
use support::{FAMILIES, cpu, models, options, reference, vindex};

#[derive(Default)]
struct Keep(BTreeMap<String, Vec<f32>>);

impl Hooks for Keep {
    fn wants(&self, _: Point) -> bool {
        true
    }

    fn at(&mut self, point: Point, _: usize, values: &mut [f32]) -> Result<(), InferenceError> {
        self.0.entry(point.to_string()).or_default().extend_from_slice(values);
        Ok(())
    }
}

#[test]
fn every_point_is_written() {
    let cpu = cpu(1);
    for family in FAMILIES {
        let prompt = reference(&models().join(family).join("logits.json")).prompt;
        let dir = tempfile::tempdir().unwrap();
        let vindex = vindex(&models().join(family).join("model.gguf"), dir.path());
        let model = Model::load(&vindex, &cpu).unwrap();
        let config = model.config();
        let out = tempfile::tempdir().unwrap();
        let path = out.path().join("t.safetensors");
        std::fs::write(&path, "what was there before").unwrap();
        let (mut recorder, mut kept) = (Recorder::create(&path, config).unwrap(), Keep::default());
        for hooks in [&mut recorder as &mut dyn Hooks, &mut kept] {
            let mut state = model.state(options(48, KvDtype::default())).unwrap();
            for tokens in [&prompt[..4], &prompt[4..5], &prompt[5..]] {
                model.feed_all(&mut state, tokens, hooks).unwrap();
            }
        }
        assert_eq!(recorder.positions(), prompt.len());
        recorder.write(HashMap::from([("tokens".to_owned(), "[]".to_owned())])).unwrap();
        assert_eq!(std::fs::read_dir(out.path()).unwrap().count(), 1, "nothing else is left");

        let bytes = std::fs::read(&path).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(file.len(), Point::all(config.n_layers).len());
        for point in Point::all(config.n_layers) {
            let tensor = file.tensor(&point.to_string()).unwrap();
            let width = match point {
                Point::MlpPost(layer) => config.n_features(layer),
                _ => config.hidden_size,
            };
            assert_eq!(tensor.shape(), [prompt.len(), width], "{family}, {point}");
            let values = tensor.data().chunks_exact(4);
            let values: Vec<f32> =
                values.map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
            assert_eq!(values, kept.0[&point.to_string()], "{family}, {point}");
            assert_eq!(values, recorder.values(point).unwrap(), "{family}, {point}");
        }
        let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
        assert_eq!(metadata.metadata().as_ref().unwrap()["tokens"], "[]");
    }
}

/// Found before anything is run, and the former file stays.
#[test]
fn a_directory_that_is_not_there_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let vindex = vindex(&models().join("llama/model.gguf"), dir.path());
    let path = dir.path().join("no/such/t.safetensors");
    let error = Recorder::create(&path, vindex.config()).unwrap_err().to_string();
    assert!(error.contains("no/such/t.safetensors"), "{error}");
    let taken = dir.path().join("taken");
    std::fs::create_dir(&taken).unwrap();
    let recorder = Recorder::create(&taken, vindex.config()).unwrap();
    assert!(recorder.write(HashMap::new()).unwrap_err().to_string().contains("taken"));
    assert!(taken.is_dir());
}
