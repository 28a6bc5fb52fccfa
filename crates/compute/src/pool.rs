//! `Pool`: fork-join threads that spin for a moment, then park.
//!
//! A job is one closure that every worker runs once; the caller is worker 0 and returns when all
//! are done. Forking costs a microsecond or two while the workers still spin, a few more once they
//! are parked. Calls never wait for each other: a call from inside a job, or while another thread
//! is using the pool, runs its whole job on the calling thread. So nesting cannot deadlock, and
//! every user of the pool must give the same answer on any number of workers.

use std::any::Any;
use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{self, JoinHandle, Thread};

/// Turns of the spin loop before a waiting thread parks: some tens of microseconds, longer than
/// the gap between two operations of a forward pass, shorter than anyone notices on a battery.
const SPINS: u32 = 4_000;

/// The job of the moment, with its lifetime erased; `run` outlives every use of it.
type Job = *const (dyn Fn(usize) + Sync);

struct Shared {
    /// Counts jobs; a worker waits for it to change.
    epoch: AtomicUsize,
    job: Mutex<Option<JobPtr>>,
    /// Workers that have not finished the job of this epoch.
    pending: AtomicUsize,
    /// The thread that waits in `run`, to be woken by the last worker.
    caller: Mutex<Option<Thread>>,
    stop: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

#[derive(Clone, Copy)]
struct JobPtr(Job);

// SAFETY: the closure behind the pointer is `Sync`, so it may be called from any thread; `run`
// keeps it alive until every worker has finished with it.
unsafe impl Send for JobPtr {}

thread_local! {
    /// Whether this thread is running a job of some pool.
    static IN_JOB: Cell<bool> = const { Cell::new(false) };
}

/// A fixed set of threads for short, even work.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held by the call that is using the workers.
    busy: Mutex<()>,
}

/// A poisoned lock only says that a job panicked; the data behind ours are always valid.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// A pool of `threads` workers, the caller of each job being one of them (so `threads - 1`
    /// threads are started; 0 means 1). Threads that the system refuses to start are done without.
    pub fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared {
            epoch: AtomicUsize::new(0),
            job: Mutex::new(None),
            pending: AtomicUsize::new(0),
            caller: Mutex::new(None),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        let workers = (1..threads)
            .map_while(|index| {
                let shared = Arc::clone(&shared);
                let name = format!("larql-{index}");
                thread::Builder::new().name(name).spawn(move || shared.work(index)).ok()
            })
            .collect();
        Self { shared, workers, busy: Mutex::new(()) }
    }

    /// Number of workers, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `job(worker, n_workers)` once on every worker, or once as `job(0, 1)` where the pool
    /// is busy or this is a nested call. Returns when all calls have; a panic in any of them is
    /// raised again here.
    pub fn run(&self, job: impl Fn(usize, usize) + Sync) {
        let n = self.threads();
        if n == 1 || IN_JOB.get() {
            return job(0, 1);
        }
        let _busy = match self.busy.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return job(0, 1),
        };
        self.fork_join(&|worker| job(worker, n));
    }

    fn fork_join(&self, job: &(dyn Fn(usize) + Sync)) {
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. Workers use the pointer between the change of `epoch`
        // and their decrement of `pending`, and this function does not return, not even by a
        // panic, before `pending` is 0.
        let job_ptr = JobPtr(unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), Job>(job) });
        *lock(&shared.job) = Some(job_ptr);
        *lock(&shared.caller) = Some(thread::current());
        shared.pending.store(self.workers.len(), Ordering::Relaxed);
        shared.epoch.fetch_add(1, Ordering::Release);
        for worker in &self.workers {
            worker.thread().unpark();
        }
        let own = call(job, 0);
        wait_until(|| shared.pending.load(Ordering::Acquire) == 0);
        *lock(&shared.job) = None;
        let payload = lock(&shared.panic).take();
        if let Err(payload) = own {
            resume_unwind(payload);
        }
        if let Some(payload) = payload {
            resume_unwind(payload);
        }
    }

    /// Calls `body` on ranges that together are `0..n_items`, each of `grain` items but the last;
    /// idle workers take the next range. A single range runs on the calling thread alone.
    pub fn parallel_for(&self, n_items: usize, grain: usize, body: impl Fn(Range<usize>) + Sync) {
        let grain = grain.max(1);
        if n_items <= grain {
            if n_items > 0 {
                body(0..n_items);
            }
            return;
        }
        let ranges = Ranges::new(n_items, grain);
        self.run(|_, _| {
            while let Some(range) = ranges.next() {
                body(range);
            }
        });
    }

    /// Like [`parallel_for`](Self::parallel_for) over the elements of `items`: `body` gets the
    /// index of its first element and the elements, to write.
    pub fn for_each_chunk<T: Send>(
        &self,
        items: &mut [T],
        grain: usize,
        body: impl Fn(usize, &mut [T]) + Sync,
    ) {
        struct Base<T>(*mut T);
        // SAFETY: the pointer is only used to form disjoint slices of `T: Send`.
        unsafe impl<T: Send> Sync for Base<T> {}
        impl<T> Base<T> {
            fn get(&self) -> *mut T {
                self.0
            }
        }
        let len = items.len();
        let base = Base(items.as_mut_ptr());
        self.parallel_for(len, grain, |range| {
            // SAFETY: the ranges that `parallel_for` hands out lie within `items` and are
            // disjoint, and `items` stays mutably borrowed until it returns.
            let chunk =
                unsafe { std::slice::from_raw_parts_mut(base.get().add(range.start), range.len()) };
            body(range.start, chunk);
        });
    }

    /// Calls `body(output, columns)` on ranges of columns that together are all columns of all
    /// outputs; idle workers take the next range. One fork for all of them.
    pub(crate) fn for_each_columns(
        &self,
        outputs: &mut [Output<'_>],
        body: impl Fn(usize, Columns<'_>) + Sync,
    ) {
        struct Part {
            base: *mut f32,
            cols: usize,
            n: usize,
            grain: usize,
            first_range: usize,
        }
        // SAFETY: the pointer is only used to form slices of disjoint columns.
        unsafe impl Sync for Part {}
        let mut n_ranges = 0;
        let mut parts = Vec::with_capacity(outputs.len());
        for Output { y, cols, grain } in outputs.iter_mut() {
            let (cols, grain) = (*cols, (*grain).max(1));
            let n = y.len().checked_div(cols).unwrap_or(0);
            parts.push(Part { base: y.as_mut_ptr(), cols, n, grain, first_range: n_ranges });
            n_ranges += cols.div_ceil(grain);
        }
        let parts = &parts;
        self.parallel_for(n_ranges, 1, |range| {
            let i = parts.partition_point(|part| part.first_range <= range.start) - 1;
            let part = &parts[i];
            let start = (range.start - part.first_range) * part.grain;
            let columns = Columns {
                base: part.base,
                stride: part.cols,
                n: part.n,
                range: start..part.cols.min(start + part.grain),
                borrowed: PhantomData,
            };
            body(i, columns);
        });
    }
}

/// A row-major matrix that [`Pool::for_each_columns`] fills.
pub(crate) struct Output<'a> {
    /// `[n, cols]`.
    pub(crate) y: &'a mut [f32],
    pub(crate) cols: usize,
    /// Columns that one worker takes at a time.
    pub(crate) grain: usize,
}

/// Some columns of a row-major matrix, which nobody else sees meanwhile.
pub(crate) struct Columns<'a> {
    base: *mut f32,
    stride: usize,
    n: usize,
    range: Range<usize>,
    borrowed: PhantomData<&'a mut [f32]>,
}

impl Columns<'_> {
    /// Which columns.
    pub(crate) fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Number of rows.
    pub(crate) fn n(&self) -> usize {
        self.n
    }

    /// These columns of row `p`. Panics where there is no such row.
    pub(crate) fn row(&mut self, p: usize) -> &mut [f32] {
        assert!(p < self.n, "row {p} of {}", self.n);
        // SAFETY: `for_each_columns` makes one `Columns` for each of its ranges, which are
        // disjoint and lie within the matrix of `n` rows of `stride` elements, and the matrix
        // stays mutably borrowed until it returns. This slice borrows `self`, so no two exist.
        unsafe {
            let start = self.base.add(p * self.stride + self.range.start);
            std::slice::from_raw_parts_mut(start, self.range.len())
        }
    }
}

/// Ranges that together are `0..n_items`, to be shared among the workers of one job.
pub struct Ranges {
    next: AtomicUsize,
    n_items: usize,
    grain: usize,
}

impl Ranges {
    /// Ranges of `grain` items each (0 means 1), the last one perhaps shorter.
    pub fn new(n_items: usize, grain: usize) -> Self {
        Self { next: AtomicUsize::new(0), n_items, grain: grain.max(1) }
    }

    /// A range that no other call got; `None` when all are taken.
    pub fn next(&self) -> Option<Range<usize>> {
        let chunk = self.next.fetch_add(1, Ordering::Relaxed);
        let start = chunk.checked_mul(self.grain).filter(|start| *start < self.n_items)?;
        Some(start..self.n_items.min(start.saturating_add(self.grain)))
    }
}

/// Runs a job's share with the nesting mark set, and catches its panic.
fn call(job: &(dyn Fn(usize) + Sync), worker: usize) -> thread::Result<()> {
    IN_JOB.set(true);
    let outcome = catch_unwind(AssertUnwindSafe(|| job(worker)));
    IN_JOB.set(false);
    outcome
}

/// Spins, then parks, until `done`. Whoever makes it true must unpark this thread afterwards.
fn wait_until(done: impl Fn() -> bool) {
    for _ in 0..SPINS {
        if done() {
            return;
        }
        std::hint::spin_loop();
    }
    while !done() {
        thread::park();
    }
}

impl Shared {
    fn work(&self, index: usize) {
        let mut seen = 0;
        loop {
            wait_until(|| {
                self.epoch.load(Ordering::Acquire) != seen || self.stop.load(Ordering::Acquire)
            });
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            seen = self.epoch.load(Ordering::Acquire);
            let job = *lock(&self.job);
            if let Some(JobPtr(job)) = job {
                // SAFETY: see `fork_join`: the closure lives until `pending` is 0, and this worker
                // has not counted itself off yet.
                let outcome = call(unsafe { &*job }, index);
                if let Err(payload) = outcome {
                    lock(&self.panic).get_or_insert(payload);
                }
            }
            // The caller must be known before the count falls: afterwards it may be another's job.
            let caller = lock(&self.caller).clone();
            if self.pending.fetch_sub(1, Ordering::AcqRel) == 1
                && let Some(caller) = caller
            {
                caller.unpark();
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches the panics of its jobs, so there is nothing to learn here.
            let _ = worker.join();
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({} threads)", self.threads())
    }
}

/// Number of physical cores that this process may use: hyper-threads share the load ports that
/// the kernels saturate, so a second one on a core only adds barriers.
pub(crate) fn physical_cores() -> usize {
    let logical = thread::available_parallelism().map_or(1, usize::from);
    siblings_per_core().map_or(logical, |siblings| logical.div_ceil(siblings))
}

/// Hardware threads of the first core, where the system tells (Linux).
fn siblings_per_core() -> Option<usize> {
    let list = "/sys/devices/system/cpu/cpu0/topology/thread_siblings_list";
    let text = std::fs::read_to_string(list).ok()?;
    let bound = |text: &str| text.parse::<usize>().ok();
    let mut siblings = 0;
    for part in text.trim().split(',') {
        siblings += match part.split_once('-') {
            Some((first, last)) => bound(last)?.checked_sub(bound(first)?)? + 1,
            None => bound(part).map(|_| 1)?,
        };
    }
    Some(siblings.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_once_on_any_number_of_threads() {
        for threads in [0, 1, 2, 3, 5] {
            let pool = Pool::new(threads);
            for (n, grain) in [(0, 4), (1, 4), (1000, 7), (64, 64), (65, 0)] {
                let mut seen = vec![0_u32; n];
                pool.for_each_chunk(&mut seen, grain, |first, chunk| {
                    for (i, item) in chunk.iter_mut().enumerate() {
                        *item += (first + i + 1) as u32;
                    }
                });
                assert!(seen.iter().enumerate().all(|(i, &s)| s == i as u32 + 1));
            }
        }
    }

    #[test]
    fn every_column_of_every_output_once() {
        for threads in [1, 3] {
            let pool = Pool::new(threads);
            let mut ys = [vec![0.0_f32; 4 * 33], vec![], vec![0.0; 4 * 7], vec![0.0; 4]];
            let mut outputs: Vec<Output<'_>> = ys
                .iter_mut()
                .zip([33, 5, 7, 1])
                .map(|(y, cols)| Output { y, cols, grain: 4 })
                .collect();
            pool.for_each_columns(&mut outputs, |output, mut columns| {
                let range = columns.range();
                for p in 0..columns.n() {
                    for (column, y) in range.clone().zip(columns.row(p)) {
                        *y += (1000 * output + 100 * p + column + 1) as f32;
                    }
                }
            });
            for (output, (y, cols)) in ys.iter().zip([33, 5, 7, 1]).enumerate() {
                for (i, y) in y.iter().enumerate() {
                    assert_eq!(*y, (1000 * output + 100 * (i / cols) + i % cols + 1) as f32);
                }
            }
        }
    }

    #[test]
    fn many_short_jobs_and_parked_workers() {
        let pool = Pool::new(3);
        let count = AtomicUsize::new(0);
        for i in 0..2_000 {
            pool.run(|_, _| {
                count.fetch_add(1, Ordering::Relaxed);
            });
            if i % 500 == 0 {
                thread::sleep(std::time::Duration::from_millis(5));
            }
        }
        assert_eq!(count.into_inner(), 6_000);
    }

    #[test]
    fn nested_and_concurrent_calls_finish() {
        let pool = Pool::new(3);
        let sum = AtomicUsize::new(0);
        let nested = || {
            pool.parallel_for(10, 1, |outer| {
                pool.parallel_for(10, 1, |inner| {
                    sum.fetch_add(outer.start * 10 + inner.start, Ordering::Relaxed);
                });
            });
        };
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(nested);
            }
        });
        assert_eq!(sum.into_inner(), 8 * 4_950);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(3);
        for culprit in 0..3 {
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                pool.run(|worker, _| assert!(worker != culprit, "worker {culprit} fails"));
            }));
            let payload = outcome.unwrap_err();
            let text = payload.downcast_ref::<String>().unwrap();
            assert_eq!(*text, format!("worker {culprit} fails"));
        }
        let count = AtomicUsize::new(0);
        pool.run(|_, n| {
            count.fetch_add(n, Ordering::Relaxed);
        });
        assert_eq!(count.into_inner(), 9);
    }
}
