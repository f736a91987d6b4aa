//! How ranks of the embedded backend that are processes end, and that nothing is left of them.

#![expect(
    clippy::unwrap_used,
    reason = "a test, which clippy knows only by its attribute"
)]

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use collectives_core::bootstrap::Bootstrap;
use collectives_core::buffer::Buffer;
use collectives_core::collectives::Collectives;
use collectives_core::communicator::Communicator;
use collectives_core::device::Device;
use collectives_core::env::World;
use collectives_core::error::{Error, ErrorKind, Result};
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;
use collectives_host::device::HostDevice;
use collectives_host::model::DeviceModel;
use collectives_host::process::ProcessCommunicator;
use collectives_testkit::launch::{Body, Exit, Launch, Report, dispatch};
use libtest_mimic::{Arguments, Trial};
use rustix::process::{Signal, getpid, kill_process};

/// Longer than any test may take: a peer that is gone must be noticed long before.
const DEADLINE: Duration = Duration::from_secs(25);

const BODIES: [(&str, Body); 5] = [
    ("ends-well", ends_well),
    ("dies-before", dies_before),
    ("dies-inside", dies_inside),
    ("sends", sends),
    ("forks", forks),
];

fn main() -> ExitCode {
    dispatch(&BODIES);
    let tests: [(&str, fn()); 5] = [
        ("after_success_nothing_has_a_name", success),
        ("a_peer_that_was_killed_has_failed", killed_before),
        ("a_peer_that_is_killed_inside_has_failed", killed_inside),
        ("messages_of_any_length_arrive", messages),
        ("a_fork_that_drops_what_it_inherited_ends_nothing", forked),
    ];
    let trial = |(name, test): (&str, fn())| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    };
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(2);
    let trials = tests.into_iter().map(trial).collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn run(body: &str, ranks: usize) -> Report {
    let report = Launch::new(body, ranks).deadline(DEADLINE).run().unwrap();
    for rank in &report.ranks {
        let gone = !std::path::Path::new(&format!("/proc/{}", rank.pid)).exists();
        assert!(gone, "rank {} is still there", rank.rank);
    }
    report
}

fn success() {
    let report = run("ends-well", 4);
    let results = report.results().unwrap_or_else(|| panic!("{report}"));
    for result in results {
        // What the ranks share is a file that no folder has: the kernel says so of every mapping.
        let maps = String::from_utf8_lossy(result);
        let shared: Vec<_> = maps
            .lines()
            .filter(|line| line.contains("collectives"))
            .collect();
        assert!(!shared.is_empty(), "nothing is shared:\n{maps}");
        for line in shared {
            assert!(
                line.contains("/memfd:collectives") && line.ends_with("(deleted)"),
                "{line}"
            );
        }
        assert!(!maps.contains("/dev/shm"), "{maps}");
    }
}

fn killed_before() {
    expect_failure_of_rank_1(&run("dies-before", 3));
}

fn killed_inside() {
    expect_failure_of_rank_1(&run("dies-inside", 3));
}

fn expect_failure_of_rank_1(report: &Report) {
    for rank in &report.ranks {
        if rank.rank == Rank(1) {
            assert_eq!(rank.exit, Exit::Signal(9), "{report}");
            continue;
        }
        let text = rank.result.as_deref().map(String::from_utf8_lossy);
        let told = text.is_some_and(|text| text.contains("rank 1 failed"));
        assert!(told && rank.is_ok(), "{report}");
    }
}

fn messages() {
    let report = run("sends", 3);
    assert!(report.is_ok(), "{report}");
}

fn forked() {
    let report = run("forks", 3);
    assert!(report.is_ok(), "{report}");
}

struct Place {
    comm: ProcessCommunicator,
    device: Arc<dyn Device>,
    bootstrap: Arc<dyn Bootstrap>,
}

fn join(world: &World) -> Result<Place> {
    let bootstrap = world.bootstrap(DEADLINE)?;
    let device = HostDevice::new(DeviceModel::new().with_shared_memory(true))?;
    let comm = ProcessCommunicator::connect_within(Arc::clone(&bootstrap), device, DEADLINE)?;
    Ok(Place {
        device: Arc::clone(comm.device()),
        comm,
        bootstrap,
    })
}

fn ends_well(world: &World) -> Result<Vec<u8>> {
    let place = join(world)?;
    let stream = place.device.create_stream()?;
    let mut tensor = Buffer::from_slice(&place.device, &vec![1_u32; 300_000], &stream)?;
    let mut handle = Collectives::without_scratch(place.comm);
    handle.all_reduce(&mut tensor, ReduceOp::Sum, &stream)?;
    let expected = u32::try_from(world.world_size).unwrap();
    assert!(tensor.read(&stream)?.iter().all(|&value| value == expected));
    let maps = fs::read("/proc/self/maps").unwrap();
    let _deferred = handle.close()?;
    let _left = place.bootstrap.all_gather("end", &[], DEADLINE);
    Ok(maps)
}

fn die() -> ! {
    let _sent = kill_process(getpid(), Signal::KILL);
    loop {
        thread::sleep(DEADLINE);
    }
}

/// The error of an operation that rank 1 never comes to.
fn error_without_rank_1(place: Place) -> Result<Vec<u8>> {
    let stream = place.device.create_stream()?;
    let mut tensor = Buffer::from_slice(&place.device, &vec![1_u32; 5_000_000], &stream)?;
    let mut handle = Collectives::without_scratch(place.comm);
    for _ in 0..1000 {
        if let Err(error) = handle.all_reduce(&mut tensor, ReduceOp::Max, &stream) {
            return Ok(error.to_string().into_bytes());
        }
    }
    Err(Error::new(ErrorKind::System(
        "rank 1 did not die".to_owned(),
    )))
}

fn dies_before(world: &World) -> Result<Vec<u8>> {
    let place = join(world)?;
    if world.rank == Rank(1) {
        die();
    }
    error_without_rank_1(place)
}

fn dies_inside(world: &World) -> Result<Vec<u8>> {
    let place = join(world)?;
    if world.rank == Rank(1) {
        thread::spawn(|| {
            thread::sleep(Duration::from_millis(120));
            die();
        });
    }
    error_without_rank_1(place)
}

fn sends(world: &World) -> Result<Vec<u8>> {
    let place = join(world)?;
    let stream = place.device.create_stream()?;
    let ranks = world.world_size;
    let (me, next) = (world.rank.index(), (world.rank.index() + 1) % ranks);
    let before = (me + ranks - 1) % ranks;
    let mut handle = Collectives::without_scratch(place.comm);
    for count in [0, 1, 1000, 8192, 70_000, 1_000_000] {
        let value = |rank: usize| u32::try_from(rank * 1_000_000 + count).unwrap();
        let out = Buffer::from_slice(&place.device, &vec![value(me); count], &stream)?;
        let mut into = Buffer::<u32>::zeroed(&place.device, count, &stream)?;
        // Even ranks send first, so that single calls meet too; a ring of odd length has one pair
        // of even neighbours, of which the last receives first.
        if me % 2 == 0 && me != ranks - 1 {
            handle.send(&out, Rank::new(next), &stream)?;
            handle.recv(&mut into, Rank::new(before), &stream)?;
        } else {
            handle.recv(&mut into, Rank::new(before), &stream)?;
            handle.send(&out, Rank::new(next), &stream)?;
        }
        assert_eq!(into.read(&stream)?, vec![value(before); count]);
    }
    let _deferred = handle.close()?;
    let _left = place.bootstrap.all_gather("end", &[], DEADLINE);
    Ok(Vec::new())
}

/// Rank 0, which hosts the control plane, and rank 1 fork a process each that drops all it inherited.
fn forks(world: &World) -> Result<Vec<u8>> {
    /// `ECANCELED`, which nothing else here gives.
    const CANCELED: i32 = 125;
    let place = join(world)?;
    let stream = place.device.create_stream()?;
    let bootstrap = Arc::clone(&place.bootstrap);
    let pair = place.bootstrap.subgroup("pair", &[world.rank])?;
    let held = Arc::new(Mutex::new(Some((place, pair))));
    if world.rank != Rank(2) {
        let inherited = Arc::clone(&held);
        let mut command = Command::new("/proc/self/exe");
        // SAFETY: Nobody holds the lock while this thread forks, and what is dropped takes no other.
        unsafe {
            command.pre_exec(move || {
                drop(inherited.lock().map(|mut held| held.take()));
                // The fork ends here, in place of the program.
                Err(std::io::Error::from_raw_os_error(CANCELED))
            });
        }
        let error = command.spawn().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(CANCELED));
    }
    let (place, _pair) = held.lock().unwrap().take().unwrap();
    let mut tensor = Buffer::from_slice(&place.device, &vec![1_u32; 3000], &stream)?;
    let mut handle = Collectives::without_scratch(place.comm);
    for _ in 0..100 {
        handle.all_reduce(&mut tensor, ReduceOp::Max, &stream)?;
    }
    assert_eq!(bootstrap.failure(), None);
    let _deferred = handle.close()?;
    let _left = bootstrap.all_gather("end", &[], DEADLINE)?;
    Ok(Vec::new())
}
