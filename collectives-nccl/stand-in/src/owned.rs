//! What graphs own: values of the program's, with a destructor each.

use std::collections::BTreeMap;
use std::ffi::{c_uint, c_void};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::world::{DESTROYS, Handle, Kind, Out, World, functions};

/// User objects by their handles.
#[derive(Default)]
pub(crate) struct Objects(BTreeMap<Handle, Object>);

struct Object {
    pointer: usize,
    destroy: extern "C" fn(*mut c_void),
    owners: usize,
}

/// Destructors that have not finished.
pub(crate) static RUNNING: AtomicUsize = AtomicUsize::new(0);
/// How long they wait before they run, in microseconds.
pub(crate) static DELAY: AtomicU64 = AtomicU64::new(0);

impl Objects {
    /// One more owner of each.
    pub(crate) fn share(&mut self, objects: &[Handle]) {
        for handle in objects {
            if let Some(object) = self.0.get_mut(handle) {
                object.owners += 1;
            }
        }
    }
}

impl World {
    /// One owner less of each.
    pub(crate) fn disown(&mut self, objects: &[Handle]) {
        for handle in objects {
            let Some(object) = self.graphs.objects.0.get_mut(handle) else {
                continue;
            };
            object.owners -= 1;
            if object.owners == 0 {
                let (destroy, pointer) = (object.destroy, object.pointer);
                self.graphs.objects.0.remove(handle);
                self.live.remove(handle);
                if let Err(error) = destroy_elsewhere(destroy, pointer) {
                    self.wrong
                        .push(format!("no thread for a destructor: {error}"));
                }
            }
        }
    }
}

/// Runs a destructor on another thread, which may call nothing here; not waited for, as the caller
/// holds the world.
fn destroy_elsewhere(destroy: extern "C" fn(*mut c_void), pointer: usize) -> std::io::Result<()> {
    let named = thread::Builder::new().name("destructor".to_owned());
    RUNNING.fetch_add(1, Ordering::AcqRel);
    named.spawn(move || {
        DESTROYS.set(true);
        thread::sleep(Duration::from_micros(DELAY.load(Ordering::Relaxed)));
        destroy(std::ptr::with_exposed_provenance_mut(pointer));
        RUNNING.fetch_sub(1, Ordering::AcqRel);
    })?;
    Ok(())
}

functions! {
    fn cuUserObjectCreate(
        object: Out<Handle>,
        pointer: *mut c_void,
        destroy: extern "C" fn(*mut c_void),
        count: c_uint,
        _flags: c_uint,
    ) |world| {
        let handle = world.make(Kind::UserObject);
        let pointer = pointer.expose_provenance();
        let owners = count as usize;
        world.graphs.objects.0.insert(handle, Object { pointer, destroy, owners });
        object.put(handle);
        Ok(())
    }
    fn cuUserObjectRelease(object: Handle, _count: c_uint) |world| {
        world.check(object, Kind::UserObject)?;
        world.disown(&[object]);
        Ok(())
    }
    fn cuGraphRetainUserObject(graph: Handle, object: Handle, _count: c_uint, _flags: c_uint) |world| {
        world.check(graph, Kind::Graph)?;
        world.check(object, Kind::UserObject)?;
        // The caller's reference moves.
        world.graphs.contents(graph)?.owned.push(object);
        Ok(())
    }
}
