//! Gemma 3 270M: opening takes milliseconds and no heap for matrices.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use std::time::Instant;

use larql_checkpoint::{Role, TensorId};
use larql_vindex::{ExtractOptions, NoProgress, Vindex, WeightsOrigin, verify};
use support::demo_model;

/// Bytes of anonymous memory of this process: heap and stacks, no mapped files.
fn anonymous() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn model_opens_in_milliseconds_without_heap_for_matrices() {
    let Some(model) = demo_model() else { return };
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("gemma.vindex");
    let started = Instant::now();
    let report =
        larql_vindex::extract(&model, &target, &ExtractOptions::default(), &NoProgress).unwrap();
    let extracted = started.elapsed();
    assert_ne!(report.weights, WeightsOrigin::Written);

    let before = anonymous();
    let started = Instant::now();
    let vindex = Vindex::open(&target).unwrap();
    let opened = started.elapsed();
    let heap = anonymous() - before;
    let bytes: u64 = report.files.iter().map(|file| file.size).sum();
    println!("extracted {bytes} bytes ({}) in {extracted:?}", report.weights);
    println!("opened in {opened:?}, {heap} bytes of heap");
    assert!(heap < 4 << 20, "{heap} bytes of heap for {bytes} bytes of weights");
    // Milliseconds on an idle machine; the bound allows for a loaded one and a debug build.
    assert!(opened.as_millis() < 250, "{opened:?}");

    let gate = vindex.require(TensorId::layer(Role::FfnGate, 17)).unwrap();
    assert_eq!((gate.rows(), gate.cols()), (2048, 640));
    let report = verify(&target, &Default::default(), &NoProgress).unwrap();
    assert!(report.is_sound());
}
