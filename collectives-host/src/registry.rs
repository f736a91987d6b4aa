//! How the ranks of a new communicator come to share one fabric.
//!
//! Rank 0 makes it and puts it into a table of this process; what travels over the bootstrap is a
//! number, and who this process is, so that ranks in different processes find out.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use collectives_core::bootstrap::Bootstrap;
use collectives_core::error::{Error, Misuse, Result, Unsupported};

use crate::fabric::{Fabric, lock};

type Table = Mutex<HashMap<u64, Arc<Fabric>>>;

fn table() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(Table::default)
}

/// A number that two processes share with no likelihood, also on two machines.
fn process_nonce() -> u64 {
    static NONCE: OnceLock<u64> = OnceLock::new();
    *NONCE.get_or_init(|| RandomState::new().hash_one(process::id()))
}

/// An entry of the table, removed when rank 0 is done, however that ends.
struct Entry(u64);

impl Entry {
    fn new(fabric: Arc<Fabric>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        lock(table()).insert(id, fabric);
        Self(id)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        lock(table()).remove(&self.0);
    }
}

/// The fabric that all ranks of this bootstrap share.
pub(crate) fn meet(bootstrap: &dyn Bootstrap, deadline: Duration) -> Result<Arc<Fabric>> {
    let world_size = bootstrap.world_size();
    let entry =
        (bootstrap.rank().index() == 0).then(|| Entry::new(Arc::new(Fabric::new(world_size))));
    let words = [
        u64::from(process::id()),
        process_nonce(),
        entry.as_ref().map_or(0, |entry| entry.0),
    ];
    let mine: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let all = bootstrap.all_gather("host/connect", &mine, deadline)?;
    if all.iter().any(|other| other.get(..16) != mine.get(..16)) {
        let what = "the host backend joins threads of one process, not processes";
        return Err(Error::unsupported(Unsupported::Operation(what.to_owned())));
    }
    let id = all
        .first()
        .and_then(|first| first.get(16..24)?.first_chunk::<8>());
    let fabric = id.and_then(|id| lock(table()).get(&u64::from_le_bytes(*id)).cloned());
    let found = [u8::from(fabric.is_some())];
    // Rank 0 keeps the entry until everybody has looked.
    let found = bootstrap.all_gather("host/connected", &found, deadline)?;
    match fabric {
        Some(fabric) if found.iter().all(|found| found == &[1]) => Ok(fabric),
        _ => Err(Misuse::Other("a rank did not find the communicator of rank 0".to_owned()).into()),
    }
}
