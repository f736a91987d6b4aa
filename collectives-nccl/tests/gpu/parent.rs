//! Starts the ranks, waits for them and reads what they say.

use std::collections::HashMap;
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use std::{env, thread};

use crate::case::Here;
use crate::rank::{PLACE, RESULTS};
use crate::{SHARED, memory};

/// What every rank said of every case.
type Said = HashMap<String, Result<(), String>>;

const WORLD_LIMIT: Duration = Duration::from_secs(200);
const CASE_LIMIT: Duration = Duration::from_secs(75);

/// The outcome of one case.
pub(crate) fn outcome(name: &str, ranks: usize, alone: bool) -> Result<(), String> {
    if alone {
        let long = memory::CASES.iter().any(|case| case.name == name);
        let limit = if long { WORLD_LIMIT } else { CASE_LIMIT };
        return said(&start(&[name], ranks, limit)?, name);
    }
    static WORLDS: Mutex<Vec<(usize, Result<Said, String>)>> = Mutex::new(Vec::new());
    let mut worlds = WORLDS.lock().map_err(|_| "an earlier case panicked")?;
    let position = match worlds.iter().position(|(known, _)| *known == ranks) {
        Some(position) => position,
        None => {
            let only = env::var("COLLECTIVES_GPU_CASES").unwrap_or_default();
            let here = Here::look();
            let names: Vec<_> = SHARED
                .iter()
                .filter(|case| here.missing(case, ranks).is_none())
                .map(|case| case.name)
                .filter(|name| only.is_empty() || only.split(',').any(|part| name.contains(part)))
                .collect();
            let world = start(&names, ranks, WORLD_LIMIT);
            worlds.push((ranks, world));
            worlds.len() - 1
        }
    };
    match &worlds[position].1 {
        Ok(world) => said(world, name),
        Err(words) => Err(words.clone()),
    }
}

fn said(world: &Said, name: &str) -> Result<(), String> {
    match world.get(name) {
        Some(outcome) => outcome.clone(),
        None => Err("the world ended before this case".to_owned()),
    }
}

/// A port that nobody listens on just now.
fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    Ok(address.port())
}

fn start(names: &[&str], ranks: usize, limit: Duration) -> Result<Said, String> {
    let text = |error: std::io::Error| error.to_string();
    let stamp = format!(
        "collectives-gpu-{}-{ranks}-{}",
        std::process::id(),
        names[0]
    );
    let directory = env::temp_dir().join(stamp);
    fs::create_dir_all(&directory).map_err(text)?;
    let port = free_port()?;
    let program = env::current_exe().map_err(text)?;
    let file = |rank: usize, kind: &str| directory.join(format!("{rank}.{kind}"));
    let mut children = Vec::new();
    for rank in 0..ranks {
        let place = format!("{rank} {ranks} {port} {}", names.join(" "));
        let output = File::create(file(rank, "out")).map_err(text)?;
        let errors = output.try_clone().map_err(text)?;
        let child = Command::new(&program)
            .env(PLACE, place)
            .env(RESULTS, file(rank, "results"))
            .env("NCCL_MAX_CTAS", if ranks <= 2 { "8" } else { "4" })
            .stdout(output)
            .stderr(errors)
            .spawn();
        children.push(child.map_err(text)?);
    }
    let late = wait(&mut children, limit);
    let mut world = Said::new();
    for rank in 0..ranks {
        read(&mut world, rank, file(rank, "results"));
    }
    if !late.is_empty() {
        eprintln!("  ranks {late:?} of {ranks} were killed after {limit:?}");
    }
    if names.len() > 1 {
        let mut slowest: Vec<_> = fs::read_to_string(file(0, "results"))
            .unwrap_or_default()
            .lines()
            .filter(|line| line.starts_with("PASS"))
            .map(ToOwned::to_owned)
            .collect();
        slowest.sort();
        eprintln!("{ranks} ranks: {}", slowest.join("; "));
    }
    for line in fs::read_to_string(file(0, "out"))
        .unwrap_or_default()
        .lines()
    {
        if let Some(told) = line.strip_prefix("SWEEP ") {
            eprintln!("  {told}");
        }
    }
    let failed = world.values().any(Result::is_err) || world.len() < names.len();
    if failed {
        for rank in 0..ranks {
            let output = fs::read_to_string(file(rank, "out")).unwrap_or_default();
            let tail: Vec<_> = output.lines().rev().take(12).collect();
            for line in tail.iter().rev() {
                eprintln!("  [rank {rank}] {line}");
            }
        }
    } else {
        let _ = fs::remove_dir_all(&directory);
    }
    Ok(world)
}

/// Waits for all, kills who is late, and says who was.
fn wait(children: &mut [Child], limit: Duration) -> Vec<usize> {
    let begun = Instant::now();
    loop {
        let running: Vec<_> = children
            .iter_mut()
            .enumerate()
            .filter_map(|(rank, child)| match child.try_wait() {
                Ok(None) => Some(rank),
                _ => None,
            })
            .collect();
        if running.is_empty() {
            return running;
        }
        if begun.elapsed() >= limit {
            for child in children.iter_mut() {
                let _ = child.kill();
                let _ = child.wait();
            }
            return running;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// A case has passed when it has on every rank, and has failed when it began and did not end.
fn read(world: &mut Said, rank: usize, path: PathBuf) {
    let text = fs::read_to_string(path).unwrap_or_default();
    let mut begun = Vec::new();
    for line in text.lines() {
        let mut words = line.splitn(3, ' ');
        let (verb, name) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        match verb {
            "BEGIN" => begun.push(name.to_owned()),
            "PASS" => {
                begun.retain(|other| other != name);
                world.entry(name.to_owned()).or_insert(Ok(()));
            }
            "FAIL" => {
                begun.retain(|other| other != name);
                fail(world, name, rank, words.next().unwrap_or(""));
            }
            _ => eprintln!("  [rank {rank}] {line}"),
        }
    }
    for name in begun {
        fail(world, &name, rank, "it did not end");
    }
}

fn fail(world: &mut Said, name: &str, rank: usize, words: &str) {
    let words = format!("rank {rank}: {words}");
    let outcome = world.entry(name.to_owned()).or_insert(Ok(()));
    *outcome = match std::mem::replace(outcome, Ok(())) {
        Ok(()) => Err(words),
        Err(before) => Err(format!("{before}; {words}")),
    };
}
