//! Counts, locks and flags of the lease and claim protocol: the standard ones, or those of loom.
//!
//! Under `--cfg loom` a model checker runs the real code through every interleaving and every value
//! that the memory model lets a load see. So that this is known to find something, `planted`
//! breaks one primitive at a time.

#[cfg(not(loom))]
pub(crate) use std::sync::{Arc as Counted, Mutex, MutexGuard, atomic::AtomicBool};

#[cfg(loom)]
pub use self::planted::AtomicBool;
#[cfg(loom)]
pub use loom::sync::{Arc as Counted, Mutex, MutexGuard};

/// Whether nobody else counts the value; synchronises with the drops of those who did.
#[cfg(not(loom))]
pub(crate) fn is_sole_owner<T>(value: &mut Counted<T>) -> bool {
    Counted::get_mut(value).is_some()
}

#[cfg(loom)]
pub(crate) use self::planted::is_sole_owner;

/// Primitives that break when a test says so.
#[cfg(loom)]
pub mod planted {
    use std::cell::Cell;
    use std::sync::atomic::Ordering;

    use loom::sync::Arc;

    /// What is broken.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub enum Bug {
        /// Flags order nothing.
        Relaxed,
        /// An exchange of a flag is a load and a store.
        TornExchange,
        /// Whoever asks is the only owner.
        OwnersUncounted,
    }

    thread_local! {
        /// A model runs all of its threads on the thread that started it.
        static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Runs `model` with this bug in every primitive.
    pub fn with<R>(bug: Option<Bug>, model: impl FnOnce() -> R) -> R {
        struct Reset;
        impl Drop for Reset {
            fn drop(&mut self) {
                PLANTED.set(None);
            }
        }
        let _reset = Reset;
        PLANTED.set(bug);
        model()
    }

    fn has(bug: Bug) -> bool {
        PLANTED.get() == Some(bug)
    }

    fn ordering(asked: Ordering) -> Ordering {
        if has(Bug::Relaxed) {
            Ordering::Relaxed
        } else {
            asked
        }
    }

    /// A flag.
    #[derive(Debug)]
    pub struct AtomicBool(loom::sync::atomic::AtomicBool);

    impl AtomicBool {
        /// A flag of this value.
        #[must_use]
        pub fn new(value: bool) -> Self {
            Self(loom::sync::atomic::AtomicBool::new(value))
        }

        /// Its value.
        pub fn load(&self, order: Ordering) -> bool {
            self.0.load(ordering(order))
        }

        /// Gives it this value.
        pub fn store(&self, value: bool, order: Ordering) {
            self.0.store(value, ordering(order));
        }

        /// Gives it the value `new` if it has the value `current`.
        ///
        /// # Errors
        ///
        /// With the value it has, if that is another.
        pub fn compare_exchange(
            &self,
            current: bool,
            new: bool,
            success: Ordering,
            failure: Ordering,
        ) -> Result<bool, bool> {
            if has(Bug::TornExchange) {
                let found = self.0.load(Ordering::Acquire);
                if found != current {
                    return Err(found);
                }
                self.0.store(new, Ordering::Release);
                return Ok(found);
            }
            self.0
                .compare_exchange(current, new, ordering(success), ordering(failure))
        }
    }

    pub(crate) fn is_sole_owner<T>(value: &mut Arc<T>) -> bool {
        let sole = Arc::get_mut(value).is_some();
        sole || has(Bug::OwnersUncounted)
    }
}
