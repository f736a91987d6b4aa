//! What graphs that are gone still own.
//!
//! The driver runs the destructors of what a graph owned on a thread of its own, some time after the
//! last executable is destroyed and its last replay has finished. So the objects of each graph of ours
//! are counted, and those of graphs that nobody has any more can be waited for.

use std::any::Any;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The objects that the driver holds for one captured graph.
#[derive(Debug, Default)]
struct Count(AtomicUsize);

/// Graphs that are gone, as long as the driver holds something for them.
#[derive(Debug, Default)]
pub(crate) struct Departing(Mutex<Vec<Arc<Count>>>);

/// One captured graph, shared by its templates and executables.
#[derive(Debug)]
pub(crate) struct Owner {
    count: Arc<Count>,
    departing: Arc<Departing>,
}

/// Something that a graph owns, dropped by the driver.
pub(super) struct Owned {
    // Dropped first, so that what is not counted any more is gone.
    _value: Box<dyn Any + Send>,
    _counted: Option<Counted>,
}

struct Counted(Arc<Count>);

impl Departing {
    /// Objects that the driver has yet to drop.
    pub(crate) fn len(&self) -> usize {
        let mut gone = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        gone.retain(|count| count.get() > 0);
        gone.iter().map(|count| count.get()).sum()
    }
}

impl Count {
    fn get(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

impl Owner {
    pub(super) fn new(departing: &Arc<Departing>) -> Self {
        Self {
            count: Arc::default(),
            departing: Arc::clone(departing),
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let mut gone = self
            .departing
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        gone.retain(|count| count.get() > 0);
        gone.push(Arc::clone(&self.count));
    }
}

impl Owned {
    /// Something for a graph to own; graphs of other libraries are not counted.
    pub(super) fn new(value: Box<dyn Any + Send>, owner: Option<&Owner>) -> Self {
        let counted = |owner: &Owner| {
            owner.count.0.fetch_add(1, Ordering::AcqRel);
            Counted(Arc::clone(&owner.count))
        };
        Self {
            _value: value,
            _counted: owner.map(counted),
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_depart_once_their_graph_is_gone_and_until_they_are_dropped() {
        let departing = Arc::default();
        let graph = Arc::new(Owner::new(&departing));
        let executable = Arc::clone(&graph);
        let (one, other) = (
            Owned::new(Box::new(1), Some(&graph)),
            Owned::new(Box::new(2), Some(&graph)),
        );
        let foreign = Owned::new(Box::new(3), None);
        drop(graph);
        assert_eq!(departing.len(), 0, "an executable is left");
        drop(executable);
        assert_eq!(departing.len(), 2);
        drop((one, foreign));
        assert_eq!(departing.len(), 1);
        drop(other);
        assert_eq!(departing.len(), 0);
    }

    #[test]
    fn what_is_not_counted_any_more_is_gone() {
        struct Asks(Arc<Departing>, Arc<AtomicUsize>);
        impl Drop for Asks {
            fn drop(&mut self) {
                self.1.store(self.0.len(), Ordering::Release);
            }
        }
        let (departing, seen) = (Arc::default(), Arc::default());
        let graph = Owner::new(&departing);
        let value = Box::new(Asks(Arc::clone(&departing), Arc::clone(&seen)));
        let owned = Owned::new(value, Some(&graph));
        drop(graph);
        drop(owned);
        assert_eq!(seen.load(Ordering::Acquire), 1);
    }
}
