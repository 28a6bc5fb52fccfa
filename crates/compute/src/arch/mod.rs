//! The kernels of each instruction set, and the one place that chooses among them.
//!
//! An instruction set is a folder; in it everything is safe code but the loads and stores. The
//! scalar twin of everything is in `kernels::scalar`.

#[cfg(target_arch = "aarch64")]
mod aarch64;
pub(crate) mod gemm;
mod vector;
#[cfg(target_arch = "x86_64")]
mod x86_64;

pub(crate) use vector::VectorKernels;

use crate::Dtype;
use crate::activation::{Q8Vector, ToQuantize};
use crate::coarse::TileKernel;
use crate::head::{self, PlanesKernel};
use crate::kernels::panel::{self, PanelKernels};
use crate::kernels::scalar;

/// An instruction set for which larql has kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Isa {
    /// Plain Rust: the twin that the others are tested against.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C (2013 and later).
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ, VL, VNNI and VBMI besides (Intel from Ice Lake on, AMD from
    /// Zen 4 on).
    Avx512,
    /// Any aarch64.
    Neon,
}

impl Isa {
    /// Every instruction set, best last.
    pub const ALL: [Self; 4] = [Self::Scalar, Self::Avx2, Self::Avx512, Self::Neon];

    /// Lower-case name, as it stands after `--cpu`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Neon => "neon",
        }
    }

    /// The instruction set of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|isa| isa.name().eq_ignore_ascii_case(name))
    }

    /// Those that this build has and this CPU runs, best last.
    pub fn available() -> Vec<Self> {
        Self::ALL.into_iter().filter(|isa| Kernels::new(*isa).is_some()).collect()
    }

    /// The best one here.
    pub fn detect() -> Self {
        Self::available().pop().unwrap_or(Self::Scalar)
    }
}

impl std::fmt::Display for Isa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// The tile of the coarse scan for `isa`; `None` where this build or this CPU lacks it, and for
/// the scalar twin.
pub(crate) fn tile_i16(isa: Isa) -> Option<TileKernel> {
    Kernels::new(isa)?;
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::Avx512 => Some(x86_64::gemm16::tile),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => Some(aarch64::gemm16::tile),
        _ => None,
    }
}

/// The kernel of an LM head's planes for `isa`; `None` where this build or this CPU lacks it. All
/// give the same bits.
pub(crate) fn planes_kernel(isa: Isa) -> Option<PlanesKernel> {
    Kernels::new(isa)?;
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => Some(x86_64::PLANES_AVX2),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => Some(x86_64::PLANES_AVX512),
        _ => Some(head::estimate),
    }
}

/// The product of panels and many vectors for `isa`; `None` where float32 is as quick.
pub(crate) fn panel_kernels(isa: Isa) -> Option<PanelKernels> {
    Kernels::new(isa)?;
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => Some(x86_64::PANEL_AVX512),
        Isa::Scalar => Some(panel::SCALAR),
        _ => None,
    }
}

/// The functions of one instruction set. Holding one is the proof that this CPU can run them.
/// A row is whole blocks of its dtype, and the vectors have as many elements as the row: callers
/// validate that, the kernels panic where it is not so.
#[derive(Clone, Copy)]
pub(crate) struct Kernels {
    isa: Isa,
    dot: unsafe fn(Dtype, &[u8], &[f32]) -> f32,
    dots_q8: unsafe fn(Dtype, &[u8], Q8Vector<'_>, &mut [f32]),
    quantize: unsafe fn(&mut ToQuantize<'_>),
    row: unsafe fn(Dtype, &[u8], &mut [f32]),
    axpy: unsafe fn(Dtype, &[u8], f32, &mut [f32]),
    sum: unsafe fn(&[u64]) -> u64,
}

impl Kernels {
    const SCALAR: Self = Self {
        isa: Isa::Scalar,
        dot: scalar::dot,
        dots_q8: scalar::dots_q8,
        quantize: scalar::quantize,
        row: scalar::row,
        axpy: scalar::axpy,
        sum: crate::bandwidth::sum,
    };

    /// The kernels of `isa`; `None` where this build or this CPU lacks them.
    pub(crate) fn new(isa: Isa) -> Option<Self> {
        match isa {
            Isa::Scalar => Some(Self::SCALAR),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => x86_64::avx2(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => x86_64::avx512(),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => aarch64::neon(),
            #[allow(unreachable_patterns, reason = "which sets are foreign depends on the target")]
            Isa::Avx2 | Isa::Avx512 | Isa::Neon => None,
        }
    }

    pub(crate) fn isa(&self) -> Isa {
        self.isa
    }

    /// The float32 arithmetic between products.
    pub(crate) fn vector(&self) -> VectorKernels {
        VectorKernels::of(self.isa)
    }

    /// The canonical dot product of a row with `x`.
    #[inline]
    pub(crate) fn dot(&self, dtype: Dtype, row: &[u8], x: &[f32]) -> f32 {
        // SAFETY: `new` hands out these kernels only where the CPU has their instruction set.
        unsafe { (self.dot)(dtype, row, x) }
    }

    /// The integer dot products of `y.len()` rows of a block format, which follow one another in
    /// `rows`, with a quantised vector.
    #[inline]
    pub(crate) fn dots_q8(&self, dtype: Dtype, rows: &[u8], x: Q8Vector<'_>, y: &mut [f32]) {
        // SAFETY: as in `dot`.
        unsafe { (self.dots_q8)(dtype, rows, x, y) }
    }

    /// Quantises a vector to int8.
    #[inline]
    pub(crate) fn quantize(&self, vector: &mut ToQuantize<'_>) {
        // SAFETY: as in `dot`.
        unsafe { (self.quantize)(vector) }
    }

    /// Dequantises a row.
    #[inline]
    pub(crate) fn row(&self, dtype: Dtype, row: &[u8], out: &mut [f32]) {
        // SAFETY: as in `dot`.
        unsafe { (self.row)(dtype, row, out) }
    }

    /// `y[i] = fma(a, row[i], y[i])`.
    #[inline]
    pub(crate) fn axpy(&self, dtype: Dtype, row: &[u8], a: f32, y: &mut [f32]) {
        // SAFETY: as in `dot`.
        unsafe { (self.axpy)(dtype, row, a, y) }
    }

    /// The wrapping sum of words, which is as quick as memory lets it be.
    #[inline]
    pub(crate) fn sum(&self, words: &[u64]) -> u64 {
        // SAFETY: as in `dot`.
        unsafe { (self.sum)(words) }
    }
}
