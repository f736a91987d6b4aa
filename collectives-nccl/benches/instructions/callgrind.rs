//! Runs a program under callgrind, and reads what it counted.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::process::Command;

use crate::folder::Folder;

/// The object whose functions are the driver's and the library's, which do not count.
const LIBRARY: &str = "libnccl_stand_in.so";

/// Bytes of a cache line.
const LINE: u64 = 64;

/// What was counted.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    all: u64,
    /// Of the driver and the library, with what they call.
    library: u64,
    /// Cache lines of this program's code with an instruction that ran.
    pub(crate) lines: usize,
    /// Instructions by function of this program, without those of functions it calls.
    pub(crate) functions: BTreeMap<String, u64>,
}

impl Counts {
    /// Instructions of this program, and of what else than the library it calls.
    pub(crate) fn instructions(&self) -> u64 {
        self.all - self.library
    }
}

/// Counts what runs inside the function that `counted` matches.
pub(crate) fn count(folder: &Folder, counted: &str, case: &str) -> io::Result<Counts> {
    let out = folder.0.join("callgrind.out");
    let mut valgrind = Command::new("valgrind");
    valgrind.args([
        "--quiet",
        "--tool=callgrind",
        "--dump-instr=yes",
        "--compress-pos=no",
        "--compress-strings=no",
    ]);
    valgrind.arg(format!("--callgrind-out-file={}", out.display()));
    valgrind.arg(format!("--toggle-collect={counted}"));
    let program = std::env::current_exe()?;
    valgrind.arg(&program).args(["--case", case]);
    let ran = folder.serve(&mut valgrind).status()?;
    if !ran.success() {
        return Err(io::Error::other(format!("valgrind ended with {ran}")));
    }
    let program = program.to_string_lossy();
    Ok(read(&std::fs::read_to_string(out)?, &program))
}

/// Reads a profile: a line for each address, with what it spent itself, and after `calls=` one with what
/// a function spent that it called, and those that that one called.
fn read(profile: &str, program: &str) -> Counts {
    let mut counts = Counts::default();
    let mut touched = BTreeSet::new();
    let (mut object, mut callee, mut function) = ("", None, "");
    let mut is_of_callee = false;
    let is_library = |object: &str| object.ends_with(LIBRARY);
    for line in profile.lines() {
        if let Some(name) = line.strip_prefix("ob=") {
            object = name;
        } else if let Some(name) = line.strip_prefix("cob=") {
            callee = Some(name);
        } else if let Some(name) = line.strip_prefix("fn=") {
            function = name;
        } else if line.starts_with("calls=") {
            is_of_callee = true;
        } else if let Some(rest) = line.strip_prefix("0x") {
            let mut fields = rest.split(' ');
            let address = fields.next();
            let address = address.and_then(|hex| u64::from_str_radix(hex, 16).ok());
            let cost = fields.nth(1).and_then(|cost| cost.parse().ok());
            let (Some(address), Some(cost @ 1_u64..)) = (address, cost) else {
                continue;
            };
            if std::mem::take(&mut is_of_callee) {
                // What the library calls itself is in there.
                let called = callee.take().unwrap_or(object);
                if is_library(called) && !is_library(object) {
                    counts.library += cost;
                }
                continue;
            }
            counts.all += cost;
            if object == program {
                touched.insert(address / LINE);
                *counts.functions.entry(function.to_owned()).or_default() += cost;
            }
        }
    }
    counts.lines = touched.len();
    counts
}
