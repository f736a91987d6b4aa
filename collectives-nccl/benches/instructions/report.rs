//! What was counted, as a table and as JSON.

use std::error::Error;
use std::path::PathBuf;
use std::process::Command;

use serde::Serialize;

use crate::callgrind::{self, Counts};
use crate::case::{self, CALLS, CASES, COUNTED};
use crate::folder::Folder;

#[derive(Debug, Serialize)]
struct Row {
    case: &'static str,
    /// For one call.
    instructions: u64,
    /// Cache lines of code.
    lines: usize,
}

#[derive(Debug, Default)]
struct Arguments {
    json: Option<PathBuf>,
    functions: bool,
    only: Option<String>,
    /// Makes the calls of this case, under callgrind.
    case: Option<String>,
}

impl Arguments {
    fn read() -> Result<Self, String> {
        let mut arguments = Self::default();
        let mut all = std::env::args().skip(1);
        while let Some(argument) = all.next() {
            let mut value = || all.next().ok_or(format!("{argument} wants a value"));
            match argument.as_str() {
                // What cargo passes to every benchmark.
                "--bench" => {}
                "--json" => arguments.json = Some(value()?.into()),
                "--case" => arguments.case = Some(value()?),
                "--functions" => arguments.functions = true,
                only if !only.starts_with('-') => arguments.only = Some(argument),
                other => return Err(format!("no option `{other}`")),
            }
        }
        Ok(arguments)
    }
}

pub(crate) fn run() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::read()?;
    if let Some(case) = &arguments.case {
        return Ok(case::run(case)?);
    }
    let version = Command::new("valgrind").arg("--version").output();
    let Ok(version) = version else {
        println!("skipped: there is no valgrind");
        return Ok(());
    };
    println!("{}", String::from_utf8_lossy(&version.stdout).trim());
    println!("{:<26} {:>12} {:>6}", "one call", "instructions", "lines");
    let folder = Folder::prepare()?;
    let mut rows = Vec::new();
    for case in CASES {
        if arguments
            .only
            .as_ref()
            .is_some_and(|only| !case.name.contains(only))
        {
            continue;
        }
        let counts = callgrind::count(&folder, COUNTED, case.name)?;
        let row = Row {
            case: case.name,
            instructions: counts.instructions() / u64::from(CALLS),
            lines: counts.lines,
        };
        println!("{:<26} {:>12} {:>6}", row.case, row.instructions, row.lines);
        if arguments.functions {
            print_functions(&counts);
        }
        rows.push(row);
    }
    if let Some(path) = arguments.json {
        std::fs::write(path, serde_json::to_vec_pretty(&rows)?)?;
    }
    Ok(())
}

fn print_functions(counts: &Counts) {
    let mut functions: Vec<_> = counts.functions.iter().collect();
    functions.sort_unstable_by_key(|(_, instructions)| std::cmp::Reverse(**instructions));
    for (name, instructions) in functions {
        println!("{:>39} {name}", instructions / u64::from(CALLS));
    }
}
