//! One rank's operations run in the order they were enqueued, on whichever streams.
//!
//! As long as none was queued or captured they all run inside the call that enqueues them, of which
//! there is one at a time, and need no tickets.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::fabric::lock;
use crate::lobby::Lobby;

/// The order of one rank's operations.
#[derive(Debug)]
pub(crate) struct Tickets {
    /// Whether anything but the enqueueing call may run an operation.
    needed: AtomicBool,
    next: AtomicU64,
    serving: AtomicU64,
    returned: Mutex<BTreeSet<u64>>,
    /// Entries of `returned`, so that the common case takes no lock.
    returns: AtomicUsize,
    lobby: Lobby,
}

/// A place in the order; dropping it unused gives it back.
#[derive(Debug)]
pub(crate) struct Ticket<T: AsRef<Tickets>> {
    owner: T,
    number: u64,
}

/// The turn of a ticket: nothing else of this rank runs until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn<'a>(&'a Tickets);

impl Tickets {
    pub(crate) fn new() -> Self {
        Self {
            needed: AtomicBool::new(false),
            next: AtomicU64::new(0),
            serving: AtomicU64::new(0),
            returned: Mutex::default(),
            returns: AtomicUsize::new(0),
            lobby: Lobby::new(2),
        }
    }

    /// Whether an operation needs a ticket. Only for the enqueueing call.
    #[inline]
    pub(crate) fn are_needed(&self) -> bool {
        self.needed.load(Ordering::Relaxed)
    }

    /// From now on operations need tickets: one is about to be queued or captured. Only for the
    /// enqueueing call.
    pub(crate) fn need(&self) {
        self.needed.store(true, Ordering::Relaxed);
    }

    /// Waits until everything enqueued so far has run; whether it has when `give_up` says to.
    pub(crate) fn finish(&self, give_up: impl Fn() -> bool) -> bool {
        self.lobby.wait(
            || self.is_idle().then_some(true),
            |_| {
                self.pass_returned();
                give_up().then_some(false)
            },
        )
    }

    /// Whether everything enqueued so far has run.
    pub(crate) fn is_idle(&self) -> bool {
        self.serving.load(Ordering::Acquire) == self.next.load(Ordering::Acquire)
    }

    fn advance(&self) {
        let next = self.serving.load(Ordering::Relaxed) + 1;
        self.serving.store(next, Ordering::Release);
        self.pass_returned();
        self.lobby.wake();
    }

    /// Passes over tickets that were given back. Whoever waits calls it too now and then, so that
    /// a ticket given back at the very moment its turn came holds up nobody.
    #[inline]
    fn pass_returned(&self) {
        if self.returns.load(Ordering::Acquire) > 0 {
            self.pass_all_returned();
        }
    }

    #[cold]
    fn pass_all_returned(&self) {
        let mut returned = lock(&self.returned);
        let mut serving = self.serving.load(Ordering::Acquire);
        while returned.remove(&serving) {
            self.returns.fetch_sub(1, Ordering::Relaxed);
            serving += 1;
            self.serving.store(serving, Ordering::Release);
        }
    }
}

impl<T: AsRef<Tickets>> Ticket<T> {
    /// The next place in the order.
    #[inline]
    pub(crate) fn take(owner: T) -> Self {
        let number = owner.as_ref().next.fetch_add(1, Ordering::Relaxed);
        Self { owner, number }
    }

    /// Waits for the turn; `give_up` is asked now and then.
    #[inline]
    pub(crate) fn turn<E>(&self, mut give_up: impl FnMut() -> Option<E>) -> Result<Turn<'_>, E> {
        let tickets = self.owner.as_ref();
        tickets.lobby.wait(
            || (tickets.serving.load(Ordering::Acquire) == self.number).then_some(Ok(())),
            |_| {
                tickets.pass_returned();
                give_up().map(Err)
            },
        )?;
        Ok(Turn(tickets))
    }

    pub(crate) fn owner(&self) -> &T {
        &self.owner
    }
}

impl<T: AsRef<Tickets>> Drop for Ticket<T> {
    fn drop(&mut self) {
        let tickets = self.owner.as_ref();
        if tickets.serving.load(Ordering::Acquire) > self.number {
            return;
        }
        lock(&tickets.returned).insert(self.number);
        tickets.returns.fetch_add(1, Ordering::Release);
        tickets.pass_returned();
        tickets.lobby.wake();
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.advance();
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::thread;

    use super::*;

    struct Owner(Tickets);

    impl AsRef<Tickets> for Owner {
        fn as_ref(&self) -> &Tickets {
            &self.0
        }
    }

    fn never() -> Option<Infallible> {
        None
    }

    #[test]
    fn turns_come_in_order_and_returned_tickets_are_passed_over() {
        let owner = Arc::new(Owner(Tickets::new()));
        struct Shared(Arc<Owner>);
        impl AsRef<Tickets> for Shared {
            fn as_ref(&self) -> &Tickets {
                &self.0.0
            }
        }
        let mut tickets: Vec<_> = (0..8)
            .map(|_| Ticket::take(Shared(Arc::clone(&owner))))
            .collect();
        drop(tickets.remove(5));
        drop(tickets.remove(0));
        let order = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for ticket in tickets.iter().rev() {
                let order = &order;
                scope.spawn(move || {
                    let _turn = ticket.turn(never).unwrap();
                    order.lock().unwrap().push(ticket.number);
                });
            }
        });
        assert_eq!(order.into_inner().unwrap(), [1, 2, 3, 4, 6, 7]);
        drop(tickets);
        assert!(owner.0.is_idle());
    }
}
