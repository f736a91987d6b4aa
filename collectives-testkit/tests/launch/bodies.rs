//! What the ranks of these tests do.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use collectives_core::agreement::Record;
use collectives_core::bootstrap::Bootstrap;
use collectives_core::env::World;
use collectives_core::error::{Error, Field, Result};
use collectives_core::rank::Rank;
use collectives_testkit::launch::Body;
use rustix::process::{Signal, getpid, kill_process};

/// Long enough never to pass in a test that is well.
pub(crate) const LONG: Duration = Duration::from_secs(60);
/// Long enough for a rank to arrive in, short enough to wait for.
pub(crate) const SHORT: Duration = Duration::from_millis(100);

pub(crate) const BODIES: [(&str, Body); 16] = [
    ("rounds", rounds),
    ("dies", |world| {
        one_of_them(world, || kill_oneself(Signal::KILL))
    }),
    ("rank 0 dies", rank_0_dies),
    ("stops", |world| {
        one_of_them(world, || kill_oneself(Signal::STOP))
    }),
    ("hangs", |world| one_of_them(world, || sleep_for_ever())),
    ("panics", |world| {
        one_of_them(world, || panic!("on purpose"))
    }),
    ("exits", |world| {
        one_of_them(world, || std::process::exit(3))
    }),
    ("fails", |world| {
        Err(Error::config(format!("rank {} has no luck", world.rank)))
    }),
    ("says", says),
    ("strangers", strangers),
    ("disagrees", disagrees),
    ("comes late", comes_late),
    ("never comes", never_comes),
    ("sleeps", sleeps),
    ("large", |_| Ok(vec![7; 5 << 20])),
    ("leaves a child", leaves_a_child),
];

fn end(world: &World) -> Result<Arc<dyn Bootstrap>> {
    world.bootstrap(LONG)
}

fn kill_oneself(signal: Signal) -> ! {
    kill_process(getpid(), signal).unwrap();
    sleep_for_ever()
}

fn sleep_for_ever() -> ! {
    loop {
        thread::sleep(LONG);
    }
}

fn rounds(world: &World) -> Result<Vec<u8>> {
    let end = end(world)?;
    for round in 0..100_u32 {
        let mine = [world.rank.0.to_le_bytes(), round.to_le_bytes()].concat();
        let all = end.all_gather(&round.to_string(), &mine, LONG)?;
        for (rank, theirs) in (0_u32..).zip(&all) {
            assert_eq!(*theirs, [rank.to_le_bytes(), round.to_le_bytes()].concat());
        }
        assert_eq!(all.len(), world.world_size);
    }
    Ok(vec![u8::try_from(world.rank.0).unwrap()])
}

/// The last rank comes to a bad end between two rounds; the others return what they were told.
fn one_of_them(world: &World, badly: impl FnOnce() -> Result<Vec<u8>>) -> Result<Vec<u8>> {
    let end = end(world)?;
    end.all_gather("before", b"", LONG)?;
    if world.rank.index() == world.world_size - 1 {
        return badly();
    }
    told(&*end, "after", LONG)
}

/// What a round that fails says, without what only this rank knows.
fn told(end: &dyn Bootstrap, round: &str, deadline: Duration) -> Result<Vec<u8>> {
    let error = end
        .all_gather(round, b"", deadline)
        .expect_err("somebody is missing");
    Ok(error.kind().to_string().into_bytes())
}

fn rank_0_dies(world: &World) -> Result<Vec<u8>> {
    let end = end(world)?;
    let before = end.all_gather("before", b"", LONG);
    if world.rank == Rank(0) {
        kill_oneself(Signal::KILL);
    }
    // The store may have died before it could tell this rank what it had told rank 0.
    let answer = match before {
        Ok(_) => told(&*end, "after", LONG),
        Err(error) => Ok(error.kind().to_string().into_bytes()),
    };
    assert_eq!(end.failure().unwrap().0, Rank(0));
    answer
}

fn says(world: &World) -> Result<Vec<u8>> {
    println!("out of {}", world.rank);
    eprint!("err of {}", world.rank);
    Ok(std::process::id().to_le_bytes().to_vec())
}

/// Rank 1 lets in whoever else might call at the store's port, again and again.
fn strangers(world: &World) -> Result<Vec<u8>> {
    let end = end(world)?;
    let address = (
        std::env::var("MASTER_ADDR").unwrap(),
        std::env::var("MASTER_PORT").unwrap(),
    );
    let address = format!("{}:{}", address.0, address.1);
    let mut kept = Vec::new();
    for round in 0..30 {
        if world.rank == Rank(1) {
            let words: [&[u8]; 3] = [b"GET / HTTP/1.1\r\n\r\n", b"\xC0LST\x01\x00\xFF\xFF", b""];
            let mut stream = TcpStream::connect(&address).unwrap();
            stream.write_all(words[round % 3]).unwrap();
            if round % 2 == 0 {
                kept.push(stream);
            }
        }
        end.all_gather(&round.to_string(), b"", LONG)?;
    }
    Ok(Vec::new())
}

fn disagrees(world: &World) -> Result<Vec<u8>> {
    let end = end(world)?;
    let bytes = if world.rank == Rank(2) { 4096 } else { 1024 };
    let mine = Record::new()
        .field(Field::Operation, 7)
        .field(Field::Bytes, bytes);
    let all = end.all_gather("agree", &mine.encode(), LONG)?;
    let all: Vec<_> = all
        .iter()
        .map(|bytes| Record::decode(bytes))
        .collect::<Result<_>>()?;
    let verdict = Record::check_equal(&all).expect_err("one of them differs");
    // The world works on.
    end.all_gather("again", b"", LONG)?;
    Ok(verdict.kind().to_string().into_bytes())
}

fn comes_late(world: &World) -> Result<Vec<u8>> {
    let end = end(world)?;
    end.all_gather("before", b"", LONG)?;
    let late = world.rank.index() == world.world_size - 1;
    if late {
        thread::sleep(SHORT * 4);
    }
    let answer = told(&*end, "late", if late { LONG } else { SHORT })?;
    end.all_gather("after", b"", LONG)?;
    Ok(answer)
}

/// The odd ranks never even connect.
fn never_comes(world: &World) -> Result<Vec<u8>> {
    if world.rank.0 % 2 == 1 {
        return Ok(Vec::new());
    }
    let end = end(world)?;
    let answer = told(&*end, "alone", SHORT)?;
    let even: Vec<_> = (0..world.world_size).step_by(2).map(Rank::new).collect();
    end.subgroup("even", &even)?
        .all_gather("together", b"", LONG)?;
    Ok(answer)
}

/// The child keeps this rank's output open, and outlives it.
fn leaves_a_child(_: &World) -> Result<Vec<u8>> {
    let child = std::process::Command::new("sleep").arg("1").spawn();
    println!("before");
    drop(child.unwrap());
    Ok(Vec::new())
}

fn sleeps(world: &World) -> Result<Vec<u8>> {
    let _end = end(world)?;
    println!("process {}", std::process::id());
    sleep_for_ever()
}
