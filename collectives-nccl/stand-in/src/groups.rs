//! Groups: calls of one thread that are enqueued together.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::c_int;

use crate::calls::Call;
use crate::work::Task;
use crate::world::{Handle, SUCCESS, World, functions, lock};

/// The open group of a thread, which may be nested.
#[derive(Default)]
struct Group {
    depth: usize,
    /// By stream, in the order of the calls.
    calls: BTreeMap<Handle, Vec<Call>>,
    /// Why nothing of it is enqueued.
    failed: Option<c_int>,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

/// A call failed; if a group is open, all of it does.
pub(crate) fn note_failure(code: c_int) {
    GROUP.with_borrow_mut(|group| {
        if group.depth > 0 {
            group.failed = Some(code);
        }
    });
}

impl World {
    /// Adds a call to the open group, or enqueues it alone.
    pub(crate) fn group_or_submit(&mut self, call: Call, stream: Handle) -> Result<(), c_int> {
        let alone = GROUP.with_borrow_mut(|group| match group.depth {
            0 => Some(call),
            _ => {
                group.calls.entry(stream).or_default().push(call);
                None
            }
        });
        alone.map_or(Ok(()), |call| self.submit_calls(stream, vec![call]))
    }

    fn submit_calls(&mut self, stream: Handle, calls: Vec<Call>) -> Result<(), c_int> {
        let kernel = calls
            .first()
            .map_or(std::ptr::null(), |call| self.kernel(call));
        self.submit(stream, Task::Calls(calls), kernel)
    }
}

functions! {
    fn ncclGroupStart() |_world| {
        GROUP.with_borrow_mut(|group| group.depth += 1);
        Ok(())
    }
}

#[unsafe(no_mangle)]
extern "C" fn ncclGroupEnd() -> c_int {
    let mut locked = lock();
    let world = locked.get();
    // It ends the group also where it fails.
    let admitted = world.admit("ncclGroupEnd", format_args!(""));
    let ended = GROUP.with_borrow_mut(|group| {
        group.depth = group.depth.saturating_sub(1);
        (group.depth == 0).then(|| std::mem::take(group))
    });
    let Some(group) = ended else {
        return admitted.err().unwrap_or(SUCCESS);
    };
    if let Some(code) = admitted.err().or(group.failed) {
        return code;
    }
    let mut calls = group.calls.into_iter();
    let submitted = calls.try_for_each(|(stream, calls)| world.submit_calls(stream, calls));
    submitted.err().unwrap_or(SUCCESS)
}
