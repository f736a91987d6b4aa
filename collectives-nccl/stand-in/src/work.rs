//! What streams are asked to do, and when it runs.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::calls::Call;
use crate::collectives::Issued;
use crate::kernels::Division;
use crate::streams::Event;
use crate::world::{Handle, World, changed};

/// How often an event was recorded, and how much of that was reached.
#[derive(Debug, Default)]
pub(crate) struct Mark {
    recorded: AtomicU64,
    reached: AtomicU64,
}

/// What one device does by itself.
#[derive(Clone, Debug)]
pub(crate) enum Local {
    Copy {
        to: usize,
        from: usize,
        bytes: usize,
    },
    Write {
        to: usize,
        bytes: Vec<u8>,
    },
    Divide(Division),
}

/// What a stream is asked to do, now or whenever a graph is launched.
#[derive(Clone, Debug)]
pub(crate) enum Task {
    Local(Local),
    Record(Event),
    Wait(Event),
    /// One group.
    Calls(Vec<Call>),
    /// A child graph, in order.
    All(Vec<Self>),
}

/// A task in a queue: events and collectives have their numbers.
#[derive(Debug)]
pub(crate) enum Step {
    Local(Local),
    Record(Arc<Mark>, u64),
    Wait(Arc<Mark>, u64),
    Calls(Vec<Issued>),
    /// A launch of this executable is over.
    Launched(Handle),
}

impl Mark {
    pub(crate) fn is_reached(&self) -> bool {
        self.has_reached(self.recorded())
    }

    /// The number of the last record.
    pub(crate) fn recorded(&self) -> u64 {
        self.recorded.load(Ordering::Relaxed)
    }

    /// The number of a new record.
    pub(crate) fn record(&self) -> u64 {
        self.recorded.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn has_reached(&self, number: u64) -> bool {
        self.reached.load(Ordering::Relaxed) >= number
    }

    fn reach(&self, number: u64) {
        self.reached.fetch_max(number, Ordering::Relaxed);
    }
}

impl Local {
    fn touches(&self, address: usize, bytes: usize) -> bool {
        let is_in = |at: usize, length: usize| at < address + bytes && address < at + length;
        match self {
            Self::Copy { to, from, bytes } => is_in(*to, *bytes) || is_in(*from, *bytes),
            Self::Write { to, bytes } => is_in(*to, bytes.len()),
            Self::Divide(division) => is_in(division.at, division.bytes()),
        }
    }
}

impl World {
    /// Enqueues a task, or adds a node, named after its kernel, where the stream captures.
    pub(crate) fn submit(
        &mut self,
        stream: Handle,
        task: Task,
        kernel: *const c_char,
    ) -> Result<(), c_int> {
        match self.capture_of(stream) {
            Some(capture) => self.add_node(capture, stream, task, kernel),
            None => {
                self.enqueue(stream, task);
                self.enqueued();
                Ok(())
            }
        }
    }

    /// Puts a task behind what the stream has to do; it counts as enqueued now.
    pub(crate) fn enqueue(&mut self, stream: Handle, task: Task) {
        let step = match task {
            Task::Local(local) => Step::Local(local),
            Task::Record(event) => {
                let number = event.mark.record();
                Step::Record(event.mark, number)
            }
            Task::Wait(event) => {
                let number = event.mark.recorded();
                Step::Wait(event.mark, number)
            }
            Task::Calls(calls) => {
                Step::Calls(calls.into_iter().map(|call| self.issue(call)).collect())
            }
            Task::All(tasks) => {
                return tasks
                    .into_iter()
                    .for_each(|task| self.enqueue(stream, task));
            }
        };
        self.push(stream, step);
    }

    pub(crate) fn push(&mut self, stream: Handle, step: Step) {
        if let Some(data) = self.streams.get_mut(&stream) {
            data.queue.push_back(step);
            self.busy.insert(stream);
        }
    }

    /// Something was enqueued, which runs now unless work is lazy.
    pub(crate) fn enqueued(&mut self) {
        if !self.lazy {
            self.advance();
        }
        // Others may be waiting for it.
        changed();
    }

    /// Runs whatever can run.
    pub(crate) fn advance(&mut self) {
        let mut moved = true;
        while moved {
            let busy: Vec<_> = self.busy.iter().copied().collect();
            moved = busy.into_iter().any(|stream| self.advance_one(stream));
        }
    }

    /// Whether a stream has nothing left to do; what it can do it does first, and then what all can.
    pub(crate) fn is_idle(&mut self, stream: Handle) -> bool {
        self.advance_one(stream);
        if self.busy.contains(&stream) {
            self.advance();
        }
        !self.busy.contains(&stream)
    }

    /// Runs what a stream can run now; whether that was anything.
    fn advance_one(&mut self, stream: Handle) -> bool {
        let mut moved = false;
        while let Some(mut step) = self.queue(stream).and_then(VecDeque::pop_front) {
            if !self.is_done(&mut step) {
                if let Some(queue) = self.queue(stream) {
                    queue.push_front(step);
                }
                return moved;
            }
            moved = true;
            changed();
        }
        self.busy.remove(&stream);
        self.forget_if_done(stream);
        moved
    }

    fn queue(&mut self, stream: Handle) -> Option<&mut VecDeque<Step>> {
        self.streams
            .get_mut(&stream)
            .map(|stream| &mut stream.queue)
    }

    /// Forgets a stream that was destroyed and has nothing left to do.
    pub(crate) fn forget_if_done(&mut self, stream: Handle) {
        let data = self.streams.get(&stream);
        if data.is_some_and(|data| data.gone && data.queue.is_empty()) {
            self.streams.remove(&stream);
        }
    }

    /// Does what a step says, unless something holds it up.
    fn is_done(&mut self, step: &mut Step) -> bool {
        match step {
            Step::Local(Local::Copy { to, from, bytes }) => {
                let (from, to) = (self.bytes_at(*from, *bytes), self.bytes_at(*to, *bytes));
                if let (Some(from), Some(to)) = (from, to) {
                    to.copy_from_slice(from);
                }
            }
            Step::Local(Local::Write { to, bytes }) => {
                if let Some(to) = self.bytes_at(*to, bytes.len()) {
                    to.copy_from_slice(bytes);
                }
            }
            Step::Local(Local::Divide(division)) => {
                if let Some(bytes) = self.bytes_at(division.at, division.bytes()) {
                    division.run(bytes);
                }
            }
            Step::Record(mark, number) => mark.reach(*number),
            Step::Wait(mark, number) => return mark.has_reached(*number),
            Step::Calls(calls) => {
                for call in calls.iter_mut() {
                    self.arrive(call);
                }
                return calls.iter().all(Issued::is_done);
            }
            Step::Launched(executable) => self.launched(*executable),
        }
        true
    }

    /// Queued work that touches a range, in words.
    pub(crate) fn work_on(&self, address: usize, bytes: usize) -> Option<String> {
        let queues = self.streams.values().flat_map(|stream| &stream.queue);
        queues
            .filter(|step| match step {
                Step::Local(local) => local.touches(address, bytes),
                Step::Calls(calls) => calls.iter().any(|call| {
                    !call.is_done()
                        && self
                            .touched_by(&call.call)
                            .into_iter()
                            .any(|(at, length)| at < address + bytes && address < at + length)
                }),
                _ => false,
            })
            .map(|step| format!("{step:?}"))
            .next()
    }
}
