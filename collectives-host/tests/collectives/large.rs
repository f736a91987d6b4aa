//! More than 2^31 elements and 2^32 bytes, on few physical pages that are mapped again and again.

use std::fs::{self, File, OpenOptions};
use std::ptr;

use collectives_core::addr::{Addr, Operand};
use collectives_core::collective::{Counts, Op};
use collectives_core::dtype::DType;
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::common::{call, on_every_rank};

const CHUNK: usize = 4 << 20;
const BEYOND: usize = (4 << 30) + CHUNK;

/// A long range of addresses: one chunk of a file over and over, and another chunk at its end.
struct Folded(Addr);

impl Folded {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("collectives-{}-{name}", std::process::id()));
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .unwrap();
        fs::remove_file(&path).unwrap();
        file.set_len(2 * CHUNK as u64).unwrap();
        // SAFETY: A fresh range; it is mapped over below.
        let base = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                BEYOND,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        };
        let base = base.unwrap();
        for start in (0..BEYOND).step_by(CHUNK) {
            let offset = if start + CHUNK == BEYOND { CHUNK } else { 0 };
            Self::map(base.wrapping_byte_add(start), &file, offset);
        }
        Self(Addr::from_ptr(base))
    }

    fn map(at: *mut std::ffi::c_void, file: &File, offset: usize) {
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: The range was reserved by the caller.
        unsafe {
            mmap(
                at,
                CHUNK,
                rights,
                MapFlags::SHARED | MapFlags::FIXED,
                file,
                offset as u64,
            )
            .unwrap()
        };
    }

    /// The chunk that backs all but the end, and the one at the end.
    fn chunks(&self) -> [*mut u8; 2] {
        [self.0.as_ptr(), self.0.offset(BEYOND - CHUNK).as_ptr()]
    }

    fn first_bytes(&self) -> [u8; 2] {
        // SAFETY: Both chunks are mapped, and nobody writes them now.
        self.chunks().map(|chunk| unsafe { chunk.read() })
    }

    fn fill(&self, values: [u8; 2]) {
        for (chunk, value) in self.chunks().into_iter().zip(values) {
            // SAFETY: The chunk is mapped, and nobody else uses it now.
            unsafe { chunk.write_bytes(value, CHUNK) };
        }
    }
}

impl Drop for Folded {
    fn drop(&mut self) {
        // SAFETY: The range is this value's own.
        unsafe { munmap(self.0.as_ptr(), BEYOND).unwrap() };
    }
}

#[test]
fn counts_beyond_31_bits_and_bytes_beyond_32_bits_reach_the_end() {
    on_every_rank(2, |rig| {
        let me = rig.rank() as u8;
        let range = Folded::new(&me.to_string());
        let side = Operand::new(range.0, BEYOND);
        // The maximum of a maximum is the same, so the repeated pages do not matter.
        range.fill([1 + me, 11 + me]);
        rig.barrier();
        let op = Op::AllReduce(ReduceOp::Max);
        rig.run(&[call(op, DType::U8, side, side, Counts::Even(BEYOND))])
            .unwrap();
        assert_eq!(range.first_bytes(), [2, 12]);
        rig.barrier();
        range.fill([3 + me, 13 + me]);
        rig.barrier();
        let op = Op::Broadcast { root: Rank(1) };
        let send = if me == 1 { side } else { Operand::EMPTY };
        rig.run(&[call(op, DType::Bf16, send, side, Counts::Even(BEYOND / 2))])
            .unwrap();
        assert_eq!(range.first_bytes(), [4, 14]);
    });
}
