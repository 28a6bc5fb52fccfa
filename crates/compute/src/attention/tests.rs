//! Attention against a plain computation in float64.

use super::*;
use crate::{Dtype, Isa};

fn numbers(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| (((i + seed) * 7919) % 2003) as f32 / 1000.0 - 1.0).collect()
}

/// Attention by its definition, in float64.
fn definition(
    shape: AttentionShape,
    kv: KvShape,
    first: usize,
    n: usize,
    q: &[f32],
    keys: &[f32],
    values: &[f32],
) -> Vec<f64> {
    let group = shape.n_heads / kv.n_kv_heads;
    let mut out = Vec::new();
    for query in 0..n {
        for head in 0..shape.n_heads {
            let q = &q[(query * shape.n_heads + head) * kv.head_dim..][..kv.head_dim];
            let position = first + query;
            let from = shape.window.map_or(0, |w| (position + 1).saturating_sub(w));
            let row = |p: usize| p * kv.n_kv_heads + head / group;
            let scores: Vec<f64> = (from..=position)
                .map(|p| {
                    let k = &keys[row(p) * kv.head_dim..][..kv.head_dim];
                    let dot: f64 = q.iter().zip(k).map(|(a, b)| f64::from(a * b)).sum();
                    let score = dot * f64::from(shape.scale);
                    shape.softcap.map_or(score, |c| f64::from(c) * (score / f64::from(c)).tanh())
                })
                .collect();
            let max = scores.iter().fold(f64::NEG_INFINITY, |m, s| m.max(*s));
            let total: f64 = scores.iter().map(|s| (s - max).exp()).sum();
            for i in 0..kv.head_dim_v {
                let value = |p: usize| f64::from(values[row(p) * kv.head_dim_v + i]);
                let sum: f64 = (from..=position)
                    .zip(&scores)
                    .map(|(p, s)| (s - max).exp() / total * value(p))
                    .sum();
                out.push(sum);
            }
        }
    }
    out
}

/// Feeds `steps` blocks of queries and returns the largest difference to the definition.
fn worst(cpu: &Cpu, shape: AttentionShape, kv: KvShape, dtype: Dtype, steps: &[usize]) -> f64 {
    let total: usize = steps.iter().sum();
    let largest = steps.iter().max().copied().unwrap_or(0);
    let keys = numbers(total * kv.n_kv_heads * kv.head_dim, 1);
    let values = if kv.values_in_keys {
        let rows = keys.chunks_exact(kv.head_dim);
        rows.flat_map(|k| k[..kv.head_dim_v].to_vec()).collect()
    } else {
        numbers(total * kv.n_kv_heads * kv.head_dim_v, 5)
    };
    let capacity = shape.window.map_or(total, |w| w - 1 + largest);
    let mut cache = KvBuffer::new(kv, dtype, capacity).unwrap();
    let (mut first, mut worst) = (0, 0.0_f64);
    for &n in steps {
        let k = &keys[first * kv.n_kv_heads * kv.head_dim..][..n * kv.n_kv_heads * kv.head_dim];
        let wide = kv.n_kv_heads * kv.head_dim_v;
        let v = if kv.values_in_keys { &[] } else { &values[first * wide..][..n * wide] };
        cache.write(first, k, v).unwrap();
        let q = numbers(n * shape.n_heads * kv.head_dim, first + 9);
        let mut out = vec![f32::NAN; n * shape.n_heads * kv.head_dim_v];
        cpu.attend(shape, &cache, first, &q, &mut out).unwrap();
        let truth = definition(shape, kv, first, n, &q, &keys, &values);
        for (a, b) in out.iter().zip(&truth) {
            worst = worst.max((f64::from(*a) - b).abs());
        }
        first += n;
    }
    worst
}

fn kv(n_kv_heads: usize, head_dim: usize, head_dim_v: usize) -> KvShape {
    KvShape { n_kv_heads, head_dim, head_dim_v, values_in_keys: false }
}

#[test]
fn matches_the_definition() {
    let plain = AttentionShape { n_heads: 4, scale: 0.3, softcap: None, window: None };
    let capped = AttentionShape { softcap: Some(2.0), window: Some(5), ..plain };
    let windowed = AttentionShape { window: Some(70), ..plain };
    let latent = KvShape { n_kv_heads: 1, head_dim: 28, head_dim_v: 20, values_in_keys: true };
    let steps: [&[usize]; 4] = [&[1, 1, 1], &[12], &[130, 1, 1, 7, 1], &[3, 200, 1, 64, 1]];
    for isa in Isa::available() {
        let cpu = Cpu::new(Some(isa), Some(3)).unwrap();
        for shape in [plain, capped, windowed] {
            for kv in [kv(4, 24, 24), kv(2, 17, 9), kv(1, 64, 80), latent] {
                for steps in steps {
                    let found = worst(&cpu, shape, kv, Dtype::F32, steps);
                    assert!(found < 2e-6, "{isa} {shape:?} {kv:?} {steps:?}: {found:e}");
                    let found = worst(&cpu, shape, kv, Dtype::F16, steps);
                    assert!(found < 2e-3, "{isa} {shape:?} {kv:?} {steps:?}: {found:e}");
                }
            }
            let found = worst(&cpu, shape, kv(2, 64, 32), Dtype::Q8_0, &[100, 1, 5]);
            assert!(found < 2e-2, "{isa} {shape:?}: {found:e}");
        }
    }
}

#[test]
fn threads_do_not_change_a_bit() {
    let shape = AttentionShape { n_heads: 6, scale: 0.2, softcap: None, window: None };
    let kv = kv(2, 40, 24);
    let mut found = Vec::new();
    for threads in [1, 2, 5] {
        let cpu = Cpu::new(None, Some(threads)).unwrap();
        let mut cache = KvBuffer::new(kv, Dtype::F16, 700).unwrap();
        cache.write(0, &numbers(700 * 80, 1), &numbers(700 * 48, 2)).unwrap();
        let mut bits = Vec::new();
        for (first, n) in [(699, 1), (400, 300), (0, 2)] {
            let mut out = vec![0.0; n * 6 * 24];
            cpu.attend(shape, &cache, first, &numbers(n * 240, 3), &mut out).unwrap();
            bits.extend(out.iter().map(|v| v.to_bits()));
        }
        found.push(bits);
    }
    assert!(found[0] == found[1] && found[0] == found[2]);
}

#[test]
fn refusals() {
    let cpu = Cpu::new(None, Some(1)).unwrap();
    assert!(KvBuffer::new(kv(1, 20, 20), Dtype::Q8_0, 10).is_err());
    let mut cache = KvBuffer::new(kv(2, 8, 8), Dtype::F16, 10).unwrap();
    assert_eq!(cache.capacity(), TILE);
    assert!(cache.write(0, &[0.0; 16], &[0.0; 15]).is_err());
    assert!(cache.write(0, &vec![0.0; 16 * 65], &vec![0.0; 16 * 65]).is_err());
    let error = cache.write(0, &[7e4; 16], &[0.0; 16]).unwrap_err();
    assert!(error.to_string().contains("70000"), "{error}");
    let shape = AttentionShape { n_heads: 2, scale: 1.0, softcap: None, window: None };
    let mut out = [0.0; 16];
    assert!(cpu.attend(shape, &cache, 64, &[0.0; 16], &mut out).is_err());
    assert!(cpu.attend(shape, &cache, 0, &[0.0; 15], &mut out).is_err());
    let odd = AttentionShape { n_heads: 3, ..shape };
    assert!(cpu.attend(odd, &cache, 0, &[0.0; 24], &mut [0.0; 24]).is_err());
}
