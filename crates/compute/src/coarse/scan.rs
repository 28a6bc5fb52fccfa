//! The scan: blocks of queries against panels of rows, with the candidates of every query.

use super::best::Best;
use super::{GRID, Gemm16, Queries, RowPanel, TILE_QUERIES, TILE_ROWS, Tile, UNIT_SLACK};
use crate::{ComputeError, Cpu};

/// Query panels in one block, which is the unit of parallel work. A block of 96 queries stays in
/// the second-level cache while panels of rows stream past.
const BLOCK_PANELS: usize = 16;

/// Queries in one block.
const BLOCK: usize = BLOCK_PANELS * TILE_QUERIES;

/// Pairs of columns multiplied before the kernel turns to the next query panel: a chunk of a row
/// panel (20 KiB) stays in the first-level cache.
const CHUNK_PAIRS: usize = 320;

/// The exact score of a query and a row, by their numbers. Scores of one query must agree with the
/// vectors given to the scan, up to a positive factor and the scan's `slack`.
pub type Rescore<'a> = dyn Fn(usize, usize) -> Result<f32, ComputeError> + Sync + 'a;

/// The rows of highest and of lowest score, best first, ties by lower row.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Extremes {
    /// `(row, score)`, highest score first.
    pub highest: Vec<(u32, f32)>,
    /// `(row, score)`, lowest score first.
    pub lowest: Vec<(u32, f32)>,
}

/// Candidates of the queries of one block.
struct Block {
    /// Its number: it holds the queries from `number * BLOCK` on.
    number: usize,
    /// The largest row error seen, in grid steps. It only grows, so that a bound that once
    /// excluded a row keeps excluding it.
    row_error: f64,
    highest: Vec<Best>,
    lowest: Vec<Best>,
    tiles: Vec<Tile>,
    rescored: u64,
    outcome: Result<(), ComputeError>,
}

/// What a finished scan found.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// The answer of each query.
    pub extremes: Vec<Extremes>,
    /// How many scores were computed in float32 for it.
    pub rescored: u64,
}

/// A running scan of all queries over the rows that come along.
pub struct CoarseScan<'a> {
    cpu: &'a Cpu,
    gemm: Gemm16,
    queries: &'a Queries,
    rescore: &'a Rescore<'a>,
    slack: f64,
    rows: usize,
    blocks: Vec<Block>,
}

impl<'a> CoarseScan<'a> {
    /// A scan for the `k` highest and the `k` lowest rows of each query. `slack` bounds how far
    /// a score of `rescore`, brought to unit vectors, may lie from the real inner product through
    /// its own float rounding.
    pub fn new(
        cpu: &'a Cpu,
        queries: &'a Queries,
        k: usize,
        rescore: &'a Rescore<'a>,
        slack: f64,
    ) -> Self {
        let blocks = (0..queries.len().div_ceil(BLOCK)).map(|number| {
            let n = BLOCK.min(queries.len() - number * BLOCK);
            let best = || (0..n).map(|_| Best::new(k)).collect();
            Block {
                number,
                row_error: 0.0,
                highest: best(),
                lowest: best(),
                tiles: vec![[[0; TILE_ROWS]; TILE_QUERIES]; n.div_ceil(TILE_QUERIES)],
                rescored: 0,
                outcome: Ok(()),
            }
        });
        let (gemm, blocks) = (Gemm16::new(cpu.isa()), blocks.collect());
        Self { cpu, gemm, queries, rescore, slack, rows: 0, blocks }
    }

    /// Scans the next rows: those of `panels`, all of which but the last of the whole scan are
    /// full. Rows are numbered in the order in which they come.
    ///
    /// # Errors
    /// What `rescore` returns; a score that is NaN, named by its row. The scan is then over.
    pub fn scan(&mut self, panels: &[RowPanel]) -> Result<(), ComputeError> {
        let (first, pool) = (self.rows, self.cpu.pool());
        assert!(first.is_multiple_of(TILE_ROWS) || panels.is_empty(), "a gap in the rows");
        self.rows += panels.iter().map(RowPanel::rows).sum::<usize>();
        let mut blocks = std::mem::take(&mut self.blocks);
        pool.for_each_chunk(&mut blocks, 1, |_, blocks| {
            for block in blocks {
                if block.outcome.is_ok() {
                    block.outcome = self.scan_block(block, panels, first);
                }
            }
        });
        self.blocks = blocks;
        self.blocks.iter().try_for_each(|block| block.outcome.clone())
    }

    fn scan_block(
        &self,
        block: &mut Block,
        panels: &[RowPanel],
        first: usize,
    ) -> Result<(), ComputeError> {
        for (i, panel) in panels.iter().enumerate() {
            assert_eq!(panel.cols(), self.queries.cols(), "columns of rows and queries");
            block.row_error = block.row_error.max(panel.error());
            self.multiply(block, panel);
            let first_row = (first + i * TILE_ROWS) as u32;
            for q in 0..block.highest.len() {
                let products = block.tiles[q / TILE_QUERIES][q % TILE_QUERIES];
                let (high, low) = (block.highest[q].limit(), -block.lowest[q].limit());
                if products.iter().fold(false, |any, &v| any | (v >= high) | (v <= low)) {
                    self.collect(block, q, &products[..panel.rows()], first_row)?;
                }
            }
        }
        Ok(())
    }

    /// All products of one block and one row panel.
    fn multiply(&self, block: &mut Block, panel: &RowPanel) {
        let chunks = panel.words().chunks(CHUNK_PAIRS * TILE_ROWS);
        for (c, rows) in chunks.enumerate() {
            let from = c * CHUNK_PAIRS * TILE_QUERIES;
            for (p, tile) in block.tiles.iter_mut().enumerate() {
                let queries = &self.queries.panel(block.number * BLOCK_PANELS + p)[from..];
                (self.gemm.tile)(queries, rows, tile, c > 0);
            }
        }
    }

    /// Takes the products of the block's query `q` that reach a limit among its candidates.
    #[cold]
    fn collect(
        &self,
        block: &mut Block,
        q: usize,
        products: &[i32],
        first_row: u32,
    ) -> Result<(), ComputeError> {
        let query = block.number * BLOCK + q;
        let error = self.error(query, block.row_error);
        let Block { highest, lowest, rescored, .. } = block;
        let mut score = |row: u32| {
            *rescored += 1;
            (self.rescore)(query, row as usize)
        };
        for (row, &product) in (first_row..).zip(products) {
            highest[q].push(product, row, error, &mut score)?;
            lowest[q].push(-product, row, error, &mut |row| score(row).map(|s| -s))?;
        }
        Ok(())
    }

    /// How far an integer product may lie from the score, in units of the product.
    fn error(&self, query: usize, row_error: f64) -> i32 {
        let (grid, query_error) = (f64::from(GRID), self.queries.error(query));
        let length = grid * (1.0 + UNIT_SLACK);
        let bound = length * row_error + (length + row_error) * query_error;
        // Saturates, like every cast from float: a bound that large merely excludes nothing.
        (bound + self.slack * grid * grid).ceil() as i32
    }

    /// Scores the remaining candidates and ranks them.
    ///
    /// # Errors
    /// What `rescore` returns; a score that is NaN, named by its row.
    pub fn finish(mut self) -> Result<Found, ComputeError> {
        let mut blocks = std::mem::take(&mut self.blocks);
        let mut answers = vec![Ok(Vec::new()); blocks.len()];
        let mut work: Vec<_> = blocks.iter_mut().zip(&mut answers).collect();
        self.cpu.pool().for_each_chunk(&mut work, 1, |_, work| {
            for (block, answer) in work {
                **answer = self.finish_block(block);
            }
        });
        let answers: Result<Vec<_>, _> = answers.into_iter().collect();
        let extremes = answers?.into_iter().flatten().collect();
        Ok(Found { extremes, rescored: blocks.iter().map(|block| block.rescored).sum() })
    }

    fn finish_block(&self, block: &mut Block) -> Result<Vec<Extremes>, ComputeError> {
        let Block { highest, lowest, rescored, row_error, .. } = block;
        let mut answer = Vec::with_capacity(highest.len());
        for (q, (highest, lowest)) in highest.iter_mut().zip(lowest).enumerate() {
            let query = block.number * BLOCK + q;
            let error = self.error(query, *row_error);
            let mut score = |row: u32| {
                *rescored += 1;
                (self.rescore)(query, row as usize)
            };
            let highest = highest.finish(error, &mut score)?;
            let mut lowest = lowest.finish(error, &mut |row| score(row).map(|s| -s))?;
            lowest.iter_mut().for_each(|(_, score)| *score = -*score);
            answer.push(Extremes { highest, lowest });
        }
        Ok(answer)
    }
}

impl std::fmt::Debug for CoarseScan<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CoarseScan({} queries of {})", self.queries.len(), self.queries.cols())
    }
}
