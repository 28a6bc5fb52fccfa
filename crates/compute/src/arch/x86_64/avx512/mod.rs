//! AVX-512 (F, BW, DQ, VL) with VNNI and VBMI: Intel from Ice Lake on, AMD from Zen 4 on.
//!
//! What is bound by arithmetic has kernels of its own here: the integer dot product, the integer
//! matrix product, the planes of an LM head. Everything else is AVX2's.

mod integers;
mod integers_k;
mod memory;
mod panel;
mod planes;

pub(super) use integers::dots_q8;
pub(super) use panel::PANEL;
pub(super) use planes::estimate;
