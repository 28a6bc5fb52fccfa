//! The forward pass: one for every family, read from top to bottom. `n` positions at a time,
//! through the same operations whether a prompt is read or one token is added.

use larql_compute::Scored;
use larql_vindex::HeadPath;

use crate::hooks::{Hooks, NoHooks, Point};
use crate::model::Layer;
use crate::profile::Operation;
use crate::state::{BATCH, Overflow, State, Workspace};
use crate::{InferenceError, Model};

/// Which positions' hidden states are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keep {
    Last,
    All,
}

impl Model<'_> {
    /// Adds `tokens` to the text: a prompt, or the token that was chosen last. Afterwards
    /// [`Model::logits`] and [`Model::top_k`] answer for the last position.
    ///
    /// # Errors
    /// A token outside the vocabulary, a full context; numbers that became infinite. The state
    /// then holds the tokens up to the last batch that was finished.
    pub fn feed(&self, state: &mut State, tokens: &[u32]) -> Result<(), InferenceError> {
        self.feed_with(state, tokens, &mut NoHooks)
    }

    /// As [`Model::feed`], calling `hooks` at the points that they want.
    ///
    /// # Errors
    /// As [`Model::feed`], and those of `hooks`.
    pub fn feed_with(
        &self,
        state: &mut State,
        tokens: &[u32],
        hooks: &mut dyn Hooks,
    ) -> Result<(), InferenceError> {
        self.make_room(state, tokens.len())?;
        self.run(state, tokens, Keep::Last, hooks)
    }

    /// As [`Model::feed_with`], and [`State::hidden`] then holds every new position.
    ///
    /// # Errors
    /// As [`Model::feed_with`].
    pub fn feed_all(
        &self,
        state: &mut State,
        tokens: &[u32],
        hooks: &mut dyn Hooks,
    ) -> Result<(), InferenceError> {
        self.make_room(state, tokens.len())?;
        self.run(state, tokens, Keep::All, hooks)
    }

    /// The logits of the token after the last position into `out`, `[vocab_size]`. Reads the
    /// whole LM head.
    ///
    /// # Errors
    /// An empty text.
    pub fn logits(&self, state: &mut State, out: &mut Vec<f32>) -> Result<(), InferenceError> {
        let start = self.last_hidden(state)?;
        out.resize(self.config().vocab_size, 0.0);
        state.profile.start();
        self.head.logits(self.cpu, &state.hidden[start..], out)?;
        if let Some(cap) = self.config().final_softcap {
            self.cpu.softcap(out, cap);
        }
        state.profile.mark(Operation::LmHead, self.head.rows().bytes().len());
        state.profile.head_answered(HeadPath::Scan);
        Ok(())
    }

    /// The logits of every kept position ([`Model::feed_all`]) from `first` on, as many as `out`
    /// has room for, into `out`, `[n, vocab_size]`.
    ///
    /// # Errors
    /// More positions than were kept.
    pub fn logits_from(
        &self,
        state: &State,
        first: usize,
        out: &mut [f32],
    ) -> Result<(), InferenceError> {
        let hidden = self.config().hidden_size;
        let n = out.len() / self.config().vocab_size;
        let rows = state.hidden.get(first * hidden..(first + n) * hidden);
        self.logits_of(rows.ok_or(InferenceError::NothingFed)?, out)
    }

    /// The logits of hidden states after the final norm, `[n, hidden_size]`, into `out`,
    /// `[n, vocab_size]`.
    pub(crate) fn logits_of(&self, hidden: &[f32], out: &mut [f32]) -> Result<(), InferenceError> {
        let config = self.config();
        self.cpu.matmul(self.head.rows(), hidden, hidden.len() / config.hidden_size, out)?;
        if let Some(cap) = config.final_softcap {
            self.cpu.softcap(out, cap);
        }
        Ok(())
    }

    /// The `k` most likely next tokens with their logits, exactly those of [`Model::logits`],
    /// without reading the whole head where that can be avoided.
    ///
    /// # Errors
    /// An empty text.
    pub fn top_k(&self, state: &mut State, k: usize) -> Result<Vec<Scored>, InferenceError> {
        let start = self.last_hidden(state)?;
        state.profile.start();
        let mut found = self.head.top_k(self.cpu, &state.hidden[start..], k)?;
        if let Some(cap) = self.config().final_softcap {
            let mut logits: Vec<f32> = found.tokens.iter().map(|t| t.score).collect();
            self.cpu.softcap(&mut logits, cap);
            found.tokens.iter_mut().zip(logits).for_each(|(t, logit)| t.score = logit);
        }
        state.profile.mark(Operation::LmHead, found.bytes_read as usize);
        state.profile.head_answered(found.path);
        Ok(found.tokens)
    }

    /// Where the last hidden state begins.
    fn last_hidden(&self, state: &State) -> Result<usize, InferenceError> {
        let start = state.hidden.len().checked_sub(self.config().hidden_size);
        start.ok_or(InferenceError::NothingFed)
    }

    /// Makes sure that `n` more tokens fit, or says that they do not.
    fn make_room(&self, state: &mut State, n: usize) -> Result<(), InferenceError> {
        let context = state.options.context;
        if state.len() + n <= context {
            return Ok(());
        }
        let full = InferenceError::ContextFull { context, held: state.len(), asked: n };
        if state.options.overflow == Overflow::Error || n + 1 > context {
            return Err(full);
        }
        // The first token (a BOS, where the model has one) stays, and of the rest the newer half,
        // or less where that would still be too much.
        let keep = (state.len() / 2).min(context - n - 1);
        let mut rest = state.tokens.split_off(state.len() - keep);
        let first = state.tokens[0];
        let forgotten = state.forgotten + state.tokens.len() - 1;
        rest.insert(0, first);
        state.reset();
        state.forgotten = forgotten;
        self.run(state, &rest, Keep::Last, &mut NoHooks)
    }

    fn run(
        &self,
        state: &mut State,
        tokens: &[u32],
        keep: Keep,
        hooks: &mut dyn Hooks,
    ) -> Result<(), InferenceError> {
        let vocab_size = self.config().vocab_size;
        if let Some(&token) = tokens.iter().find(|&&token| token as usize >= vocab_size) {
            return Err(InferenceError::NoSuchToken { token, vocab_size });
        }
        if tokens.is_empty() {
            return Ok(());
        }
        state.hidden.clear();
        let batches = tokens.chunks(BATCH);
        let last = batches.len() - 1;
        for (i, batch) in batches.enumerate() {
            let kept = if keep == Keep::All { batch.len() } else { usize::from(i == last) };
            self.pass(state, batch, kept, hooks)?;
            state.tokens.extend_from_slice(batch);
        }
        Ok(())
    }

    /// One pass over at most [`BATCH`] tokens; the last `kept` hidden states are added to the
    /// state's.
    fn pass(
        &self,
        state: &mut State,
        tokens: &[u32],
        kept: usize,
        hooks: &mut dyn Hooks,
    ) -> Result<(), InferenceError> {
        let (config, cpu) = (self.config(), self.cpu);
        let (n, first, hidden) = (tokens.len(), state.tokens.len(), config.hidden_size);
        state.profile.start();
        self.embed(tokens, first, &mut state.work)?; // x: [n, hidden]
        if let Some(rotary) = &state.rotary {
            rotary.angles(first, n, &mut state.work.angles);
        }
        state.written = state.written.max(first + n);
        hook(hooks, Point::Embed, first, &mut state.work.x)?;
        state.profile.mark(Operation::Embed, 0);

        for (i, layer) in self.layers.iter().enumerate() {
            hook(hooks, Point::ResidPre(i), first, &mut state.work.x)?;
            // Of the last layer only the kept positions go on: the others have given their keys
            // and values, and nothing reads their residuals any more.
            let wanted =
                if i + 1 < self.layers.len() || !self.prunable(hooks, i) { n } else { kept };
            resize(&mut state.work.h, n * hidden);
            layer.attn_norm.apply(cpu, &state.work.x, &mut state.work.h)?; // [n, hidden]
            state.profile.mark(Operation::Norm, 0);
            self.attention(layer, i, first, wanted, state)?; // out: [wanted, hidden]
            post_norm(cpu, layer.post_attn_norm.as_ref(), &mut state.work)?;
            let x_rows = state.work.x.len() / hidden;
            state.work.x.drain(..(x_rows - wanted) * hidden);
            let first = first + n - wanted;
            hook(hooks, Point::AttnOut(i), first, &mut state.work.out)?;
            add(&mut state.work.x, &state.work.out);
            hook(hooks, Point::ResidMid(i), first, &mut state.work.x)?;
            if wanted == 0 {
                continue;
            }
            resize(&mut state.work.h, wanted * hidden);
            layer.ffn_norm.apply(cpu, &state.work.x, &mut state.work.h)?; // [wanted, hidden]
            hook(hooks, Point::MlpIn(i), first, &mut state.work.h)?;
            state.profile.mark(Operation::Norm, 0);
            self.ffn(layer, i, first, state, hooks)?; // out: [wanted, hidden]
            post_norm(cpu, layer.post_ffn_norm.as_ref(), &mut state.work)?;
            hook(hooks, Point::MlpOut(i), first, &mut state.work.out)?;
            add(&mut state.work.x, &state.work.out);
            hook(hooks, Point::ResidPost(i), first, &mut state.work.x)?;
            state.profile.mark(Operation::Norm, 0);
        }

        let skipped = state.work.x.len() / hidden - kept;
        let start = state.hidden.len();
        state.hidden.resize(start + kept * hidden, 0.0);
        let kept_rows = &state.work.x[skipped * hidden..];
        self.output_norm.apply(cpu, kept_rows, &mut state.hidden[start..])?;
        hook(hooks, Point::FinalNorm, first + n - kept, &mut state.hidden[start..])?;
        state.profile.mark(Operation::Norm, 0);
        Ok(())
    }

    /// Whether nobody wants to see the other positions at the rest of layer `i`.
    fn prunable(&self, hooks: &dyn Hooks, i: usize) -> bool {
        let rest = [
            Point::AttnOut(i),
            Point::ResidMid(i),
            Point::MlpIn(i),
            Point::MlpPost(i),
            Point::MlpOut(i),
            Point::ResidPost(i),
        ];
        !rest.iter().any(|&point| hooks.wants(point))
    }

    /// The scaled embeddings, with learned positions where the model has them.
    fn embed(
        &self,
        tokens: &[u32],
        first: usize,
        work: &mut Workspace,
    ) -> Result<(), InferenceError> {
        let config = self.config();
        let hidden = config.hidden_size;
        resize(&mut work.x, tokens.len() * hidden);
        for (&token, x) in tokens.iter().zip(work.x.chunks_exact_mut(hidden)) {
            self.cpu.row(self.embedding, token as usize, x)?;
            if config.embedding_scale != 1.0 {
                x.iter_mut().for_each(|x| *x *= config.embedding_scale);
            }
        }
        if let Some(positions) = self.positions {
            for (i, x) in work.x.chunks_exact_mut(hidden).enumerate() {
                self.cpu.axpy_row(positions, first + i, 1.0, x)?;
            }
        }
        Ok(())
    }
}

/// A sublayer's output through its post-norm, where it has one.
fn post_norm(
    cpu: &larql_compute::Cpu,
    norm: Option<&crate::model::Norm>,
    work: &mut Workspace,
) -> Result<(), InferenceError> {
    if let Some(norm) = norm {
        resize(&mut work.normed, work.out.len());
        norm.apply(cpu, &work.out, &mut work.normed)?;
        std::mem::swap(&mut work.out, &mut work.normed);
    }
    Ok(())
}

/// Calls the hooks, where they want it.
pub(crate) fn hook(
    hooks: &mut dyn Hooks,
    point: Point,
    first: usize,
    values: &mut [f32],
) -> Result<(), InferenceError> {
    if hooks.wants(point) { hooks.at(point, first, values) } else { Ok(()) }
}

/// `y += x`.
pub(crate) fn add(y: &mut [f32], x: &[f32]) {
    y.iter_mut().zip(x).for_each(|(y, x)| *y += x);
}

/// Gives a buffer its length; what it holds is overwritten by whoever asked.
pub(crate) fn resize(buffer: &mut Vec<f32>, len: usize) {
    buffer.resize(len, 0.0);
}

impl Layer<'_> {
    /// Whether it attends to a window only.
    pub(crate) fn windowed(&self) -> bool {
        self.window.is_some()
    }
}
