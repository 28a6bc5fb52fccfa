//! The attention of one block: projections, head norms, rotation, cache, output projection.

use larql_compute::{AttentionShape, Cpu, Matrix};

use crate::forward::resize;
use crate::model::{AttentionWeights, Latent, LatentQuery, LatentUp, Layer, Norm, Projection};
use crate::profile::Operation;
use crate::state::{State, Workspace};
use crate::{InferenceError, Model, rope};

impl Model<'_> {
    /// Attention of block `i` over the normed residual `h`, `[n, hidden_size]`: all positions'
    /// keys and values go to the cache, and the last `wanted` positions' outputs, before any
    /// post-norm, to `out`, `[wanted, hidden_size]`.
    pub(crate) fn attention(
        &self,
        layer: &Layer<'_>,
        i: usize,
        first: usize,
        wanted: usize,
        state: &mut State,
    ) -> Result<(), InferenceError> {
        let (config, cpu) = (self.config(), self.cpu);
        let n = state.work.h.len() / config.hidden_size;
        let (heads, group) = (config.n_heads, first + n - wanted);
        match &layer.attention {
            AttentionWeights::Heads { q, k, v, norms } => {
                self.project_heads([q, k, v], wanted, state)?;
                self.place_heads(layer, norms.as_ref(), n - wanted, state)?;
                state.layers[i].write(first, &state.work.k, &state.work.v)?;
            }
            AttentionWeights::Latent(latent) => {
                self.project_latent(latent, wanted, state)?;
                state.layers[i].write(first, &state.work.k, &[])?;
            }
        }
        state.profile.mark(Operation::Positions, 0);
        if wanted == 0 {
            state.work.out.clear();
            return Ok(());
        }
        let kv = state.layers[i].shape();
        resize(&mut state.work.attended, wanted * heads * kv.head_dim_v);
        let shape = AttentionShape {
            n_heads: heads,
            scale: config.query_scale,
            softcap: config.attn_softcap,
            window: layer.window,
        };
        let work = &mut state.work;
        cpu.attend(shape, &state.layers[i], group, &work.q, &mut work.attended)?;
        if let AttentionWeights::Latent(latent) = &layer.attention {
            self.latent_values(latent, wanted, work)?; // [wanted, heads, head_dim_v]
        }
        // Several positions share what they read; what that comes to is not known here.
        let seen = if n == 1 { layer.window.unwrap_or(usize::MAX).min(group + 1) } else { 0 };
        let bytes = seen * state.layers[i].position_bytes();
        state.profile.mark(Operation::Attention, bytes);

        resize(&mut work.out, wanted * config.hidden_size);
        work.activations.set(self.cpu, &work.attended, wanted)?;
        cpu.project(layer.attn_output.matrix, &work.activations, &mut work.out)?;
        layer.attn_output.add_bias(&mut work.out);
        state.profile.mark(Operation::AttnOutput, layer.attn_output.matrix.bytes().len());
        Ok(())
    }

    /// Keys and values of all positions, queries of the last `wanted`.
    fn project_heads(
        &self,
        [q, k, v]: [&Projection<'_>; 3],
        wanted: usize,
        state: &mut State,
    ) -> Result<(), InferenceError> {
        let (cpu, hidden) = (self.cpu, self.config().hidden_size);
        let work = &mut state.work;
        let n = work.h.len() / hidden;
        resize(&mut work.q, wanted * q.matrix.rows());
        resize(&mut work.k, n * k.matrix.rows());
        resize(&mut work.v, n * v.matrix.rows());
        work.activations.set(self.cpu, &work.h, n)?;
        let (keys, values) = ((k.matrix, &mut work.k[..]), (v.matrix, &mut work.v[..]));
        if wanted == n {
            let queries = (q.matrix, &mut work.q[..]);
            cpu.project_all(&mut [queries, keys, values], &work.activations)?;
        } else {
            cpu.project_all(&mut [keys, values], &work.activations)?;
        }
        if wanted < n && wanted > 0 {
            work.activations.set(self.cpu, &work.h[(n - wanted) * hidden..], wanted)?;
            cpu.project(q.matrix, &work.activations, &mut work.q)?;
        }
        q.add_bias(&mut work.q);
        k.add_bias(&mut work.k);
        v.add_bias(&mut work.v);
        let bytes = [q, k, v].iter().map(|p| p.matrix.bytes().len()).sum();
        state.profile.mark(Operation::Qkv, bytes);
        Ok(())
    }

    /// Norms and rotates queries and keys; the first query belongs to the `skipped`th position.
    fn place_heads(
        &self,
        layer: &Layer<'_>,
        norms: Option<&(Norm, Norm)>,
        skipped: usize,
        state: &mut State,
    ) -> Result<(), InferenceError> {
        let (config, cpu) = (self.config(), self.cpu);
        let work = &mut state.work;
        if let Some((q_norm, k_norm)) = norms {
            norm_in_place(cpu, q_norm, &mut work.q, &mut work.heads)?;
            norm_in_place(cpu, k_norm, &mut work.k, &mut work.heads)?;
        }
        if let Some(rotary) = &state.rotary {
            let (width, windowed) = (config.head_dim, layer.windowed());
            let q = (config.n_heads, width);
            let k = (config.n_kv_heads, width);
            rotary.rotate(&work.angles, windowed, skipped, &mut work.q, q, 0);
            rotary.rotate(&work.angles, windowed, 0, &mut work.k, k, 0);
        }
        Ok(())
    }

    /// The latent of all positions, `k`: `[n, kv_lora_rank + qk_rope]`, normed and rotated, and
    /// the last `wanted` positions' queries in the latent's space, `q`:
    /// `[wanted, n_heads, kv_lora_rank + qk_rope]`.
    fn project_latent(
        &self,
        latent: &Latent<'_>,
        wanted: usize,
        state: &mut State,
    ) -> Result<(), InferenceError> {
        let (config, cpu) = (self.config(), self.cpu);
        let Some(mla) = &config.mla else { return Ok(()) };
        let (rank, rotated) = (mla.kv_lora_rank, mla.qk_rope);
        let width = rank + rotated;
        let work = &mut state.work;
        let n = work.h.len() / config.hidden_size;

        resize(&mut work.k, n * width);
        work.activations.set(self.cpu, &work.h, n)?;
        cpu.project(latent.kv_a, &work.activations, &mut work.k)?;
        let mut normed = vec![0.0; rank];
        for row in work.k.chunks_exact_mut(width) {
            latent.kv_a_norm.apply(cpu, &row[..rank], &mut normed)?;
            row[..rank].copy_from_slice(&normed);
        }

        if wanted == 0 {
            if let Some(rotary) = &state.rotary {
                rotary.rotate(&work.angles, false, 0, &mut work.k, (1, width), rank);
            }
            return Ok(());
        }
        work.activations.set(self.cpu, &work.h[(n - wanted) * config.hidden_size..], wanted)?;
        resize(&mut work.heads, wanted * config.n_heads * config.head_dim);
        match &latent.query {
            LatentQuery::Direct(q) => cpu.project(*q, &work.activations, &mut work.heads)?,
            LatentQuery::Compressed { a, norm, b } => {
                resize(&mut work.q, wanted * a.rows());
                cpu.project(*a, &work.activations, &mut work.q)?;
                resize(&mut work.v, work.q.len());
                norm.apply(cpu, &work.q, &mut work.v)?;
                work.activations.set(self.cpu, &work.v, wanted)?;
                cpu.project(*b, &work.activations, &mut work.heads)?;
            }
        }
        state.profile.mark(Operation::Qkv, latent.kv_a.bytes().len());
        if let Some(rotary) = &state.rotary {
            rotary.rotate(&work.angles, false, 0, &mut work.k, (1, width), rank);
            let (heads, offset) = ((config.n_heads, config.head_dim), rope::offset(config));
            rotary.rotate(&work.angles, false, n - wanted, &mut work.heads, heads, offset);
        }

        // A score is (K c) · q = c · (Kᵀ q): the query goes into the latent's space, so that keys
        // are never unpacked.
        resize(&mut work.q, wanted * config.n_heads * width);
        let (mut from, mut to) = (vec![0.0; wanted * mla.qk_nope], vec![0.0; wanted * rank]);
        for head in 0..config.n_heads {
            let row = |p: usize| (p * config.n_heads + head) * config.head_dim;
            for (p, from) in from.chunks_exact_mut(mla.qk_nope).enumerate() {
                from.copy_from_slice(&work.heads[row(p)..row(p) + mla.qk_nope]);
            }
            match &latent.up {
                LatentUp::Split { k, .. } => {
                    let k = k.row_range(head * rank..(head + 1) * rank);
                    product(cpu, k, &from, wanted, &mut to)?;
                }
                LatentUp::Fused(both) => {
                    let first = head * (mla.qk_nope + config.head_dim_v);
                    to.fill(0.0);
                    for (q, to) in from.chunks_exact(mla.qk_nope).zip(to.chunks_exact_mut(rank)) {
                        for (i, &q) in q.iter().enumerate() {
                            cpu.axpy_row(*both, first + i, q, to)?;
                        }
                    }
                }
            }
            for (p, to) in to.chunks_exact(rank).enumerate() {
                let q = &mut work.q[(p * config.n_heads + head) * width..][..width];
                q[..rank].copy_from_slice(to);
                q[rank..].copy_from_slice(&work.heads[row(p) + mla.qk_nope..][..rotated]);
            }
        }
        Ok(())
    }

    /// Attended latents, `attended`: `[wanted, n_heads, kv_lora_rank]`, to values,
    /// `[wanted, n_heads, head_dim_v]`.
    fn latent_values(
        &self,
        latent: &Latent<'_>,
        wanted: usize,
        work: &mut Workspace,
    ) -> Result<(), InferenceError> {
        let config = self.config();
        let Some(mla) = &config.mla else { return Ok(()) };
        let (rank, width, heads) = (mla.kv_lora_rank, config.head_dim_v, config.n_heads);
        resize(&mut work.heads, wanted * heads * width);
        let (mut from, mut to) = (vec![0.0; wanted * rank], vec![0.0; wanted * width]);
        for head in 0..heads {
            for (p, from) in from.chunks_exact_mut(rank).enumerate() {
                from.copy_from_slice(&work.attended[(p * heads + head) * rank..][..rank]);
            }
            let rows = match &latent.up {
                LatentUp::Split { v, .. } => v.row_range(head * width..(head + 1) * width),
                LatentUp::Fused(both) => {
                    let first = head * (mla.qk_nope + width) + mla.qk_nope;
                    both.row_range(first..first + width)
                }
            };
            product(self.cpu, rows, &from, wanted, &mut to)?;
            for (p, to) in to.chunks_exact(width).enumerate() {
                work.heads[(p * heads + head) * width..][..width].copy_from_slice(to);
            }
        }
        std::mem::swap(&mut work.heads, &mut work.attended);
        Ok(())
    }
}

/// `y = m x` in float32 for `n` vectors: the latent's products are small and their error counts
/// twice.
fn product(
    cpu: &Cpu,
    m: Matrix<'_>,
    x: &[f32],
    n: usize,
    y: &mut [f32],
) -> Result<(), InferenceError> {
    if n == 1 {
        cpu.matvec(m, x, y)?;
    } else {
        cpu.matmul(m, x, n, y)?;
    }
    Ok(())
}

/// Norms every row of `x`; `scratch` is overwritten.
fn norm_in_place(
    cpu: &Cpu,
    norm: &Norm,
    x: &mut Vec<f32>,
    scratch: &mut Vec<f32>,
) -> Result<(), InferenceError> {
    resize(scratch, x.len());
    norm.apply(cpu, x, scratch)?;
    std::mem::swap(x, scratch);
    Ok(())
}
