use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use rstest::rstest;

use super::World;
use super::meeting::Meeting;
use super::store::Store;
use crate::error::{ErrorKind, Result};
use crate::rank::Rank;

const TORCHRUN: [(&str, &str); 6] = [
    ("RANK", "5"),
    ("WORLD_SIZE", "8"),
    ("LOCAL_RANK", "1"),
    ("LOCAL_WORLD_SIZE", "4"),
    ("MASTER_ADDR", "node-0"),
    ("MASTER_PORT", "29500"),
];

/// The variables of a rank under torchrun, some changed, some (those with `-`) removed.
fn with(changes: &[(&str, &str)]) -> Result<World> {
    let mut vars: Vec<_> = TORCHRUN.to_vec();
    vars.retain(|(name, _)| changes.iter().all(|(changed, _)| changed != name));
    vars.extend(changes.iter().filter(|(_, value)| *value != "-"));
    World::from_vars(vars)
}

fn store_of(world: &World) -> &Store {
    match &world.meeting {
        Meeting::Tcp(store) => store,
        other => panic!("{other:?}"),
    }
}

fn text(result: Result<World>) -> String {
    let error = result.unwrap_err();
    match error.kind() {
        ErrorKind::Config(text) => text.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn torchrun_is_understood() {
    let world = with(&[]).unwrap();
    assert_eq!((world.rank, world.world_size), (Rank(5), 8));
    assert_eq!((world.local_rank, world.local_world_size), (1, Some(4)));
    assert_eq!(world.launcher, "torchrun");
    let store = store_of(&world);
    assert_eq!((store.host.as_str(), store.port), ("node-0", 29500));
    let world = with(&[("LOCAL_WORLD_SIZE", "-"), ("RANK", " 7 ")]).unwrap();
    assert_eq!((world.rank, world.local_world_size), (Rank(7), None));
}

#[test]
fn without_any_variable_the_error_says_what_was_looked_for() {
    let text = text(World::from_vars([("PATH", "/bin"), ("HOME", "/")]));
    for name in [
        "torchrun",
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
        "OMPI_COMM_WORLD_RANK",
        "PMI_RANK",
        "MPI_LOCALRANKID",
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
    ] {
        assert!(text.contains(name), "{name}: {text}");
    }
}

const OPEN_MPI: [(&str, &str); 4] = [
    ("OMPI_COMM_WORLD_RANK", "3"),
    ("OMPI_COMM_WORLD_SIZE", "4"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
];
const HYDRA: [(&str, &str); 4] = [
    ("PMI_RANK", "3"),
    ("PMI_SIZE", "4"),
    ("MPI_LOCALRANKID", "1"),
    ("MPI_LOCALNRANKS", "2"),
];
const SLURM: [(&str, &str); 7] = [
    ("SLURM_PROCID", "3"),
    ("SLURM_STEP_NUM_TASKS", "4"),
    ("SLURM_LOCALID", "1"),
    ("SLURM_STEP_NODELIST", "gpu[07-08]"),
    ("SLURM_JOB_ID", "1234567"),
    ("SLURM_STEP_ID", "2"),
    ("SLURM_NTASKS", "4"),
];

#[rstest]
#[case(&OPEN_MPI, "Open MPI", Some(2))]
#[case(&HYDRA, "Hydra", Some(2))]
#[case(&SLURM, "Slurm", None)]
fn other_launchers_are_understood(
    #[case] vars: &[(&str, &str)],
    #[case] launcher: &str,
    #[case] local_size: Option<usize>,
) {
    let world = World::from_vars(vars.iter().copied()).unwrap();
    assert_eq!((world.rank, world.world_size), (Rank(3), 4));
    assert_eq!((world.local_rank, world.local_world_size), (1, local_size));
    assert_eq!(world.launcher, launcher);
}

#[test]
fn the_launcher_inside_another_speaks() {
    let inside = |inner: &[(&str, &str)], outer: &[(&str, &str)]| {
        let world = World::from_vars(inner.iter().chain(outer).copied()).unwrap();
        world.launcher
    };
    assert_eq!(inside(&TORCHRUN, &SLURM), "torchrun");
    assert_eq!(inside(&TORCHRUN, &OPEN_MPI), "torchrun");
    assert_eq!(inside(&OPEN_MPI, &SLURM), "Open MPI");
    assert_eq!(inside(&HYDRA, &SLURM), "Hydra");
    // srun with PMI sets these too.
    assert_eq!(inside(&SLURM, &HYDRA[..2]), "Slurm");
}

/// A rank of Slurm's, with these variables as well, and without those that are `-`.
fn under_slurm(changes: &[(&str, &str)]) -> Result<World> {
    let mut vars = SLURM.to_vec();
    vars.retain(|(name, _)| changes.iter().all(|(changed, _)| changed != name));
    vars.extend(changes.iter().filter(|(_, value)| *value != "-"));
    World::from_vars(vars)
}

/// What people export in a script, and then call a launcher.
const EXPORTED: [(&str, &str); 3] = [
    ("WORLD_SIZE", "4"),
    ("MASTER_ADDR", "localhost"),
    ("MASTER_PORT", "29500"),
];

#[rstest]
#[case(&OPEN_MPI, "Open MPI")]
#[case(&HYDRA, "Hydra")]
#[case(&SLURM, "Slurm")]
fn an_incomplete_launcher_yields_to_a_complete_one(
    #[case] complete: &[(&str, &str)],
    #[case] name: &str,
    #[values(&[], &[("RANK", "3")], &[("LOCAL_RANK", "0")])] more: &[(&str, &str)],
) {
    let vars = complete.iter().chain(&EXPORTED).chain(more);
    let world = World::from_vars(vars.copied()).unwrap();
    assert_eq!((world.rank, world.world_size), (Rank(3), 4));
    assert_eq!((world.launcher, world.local_rank), (name, 1));
    let store = store_of(&world);
    assert_eq!((store.host.as_str(), store.port), ("localhost", 29500));
}

#[test]
fn a_launcher_that_says_no_place_to_meet_yields_to_one_that_does() {
    let who = [("RANK", "3"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "1")];
    let world = under_slurm(&who).unwrap();
    assert_eq!(world.launcher, "Slurm");
    assert_eq!(store_of(&world).host, "gpu07");
}

#[test]
fn two_launchers_that_do_not_fit_together_are_both_named() {
    let size = [("WORLD_SIZE", "2"), EXPORTED[1], EXPORTED[2]];
    let rank = [("RANK", "0"), EXPORTED[0], EXPORTED[1], EXPORTED[2]];
    let none = [("RANK", "zero"), EXPORTED[0]];
    let cases: [(&[_], &[&str]); 3] = [
        (
            &size,
            &["RANK is not set", "SLURM_STEP_NUM_TASKS=4", "WORLD_SIZE=2"],
        ),
        (
            &rank,
            &["LOCAL_RANK is not set", "SLURM_PROCID=3", "RANK=0"],
        ),
        (&none, &["RANK=zero is not a rank"]),
    ];
    for (exported, parts) in cases {
        let text = text(under_slurm(exported));
        for part in parts.iter().chain(&["torchrun", "Slurm"]) {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
    let mut incomplete = size.to_vec();
    incomplete.push(("SLURM_LOCALID", "-"));
    let text = text(under_slurm(&incomplete));
    for part in ["RANK is not set", "SLURM_LOCALID is not set"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn one_rank_a_pod_needs_no_local_rank() {
    let world = with(&[("LOCAL_RANK", "-"), ("LOCAL_WORLD_SIZE", "-")]).unwrap();
    assert_eq!((world.rank, world.world_size), (Rank(5), 8));
    assert_eq!((world.local_rank, world.local_world_size), (0, None));
    assert_eq!(world.launcher, "PyTorchJob");
    assert_eq!(store_of(&world).host, "node-0");
    // Machine by machine, as every launcher of torchrun's kind counts.
    let world = with(&[("LOCAL_RANK", "-")]).unwrap();
    assert_eq!((world.local_rank, world.local_world_size), (1, Some(4)));
}

#[rstest]
#[case(&[("SLURM_STEP_NODELIST", "rack[0-3]node[00-15]")], "rack0node00")]
#[case(&[("SLURM_STEP_NODELIST", "-"), ("SLURM_JOB_NODELIST", "gpu[3-4]")], "gpu3")]
#[case(&[("SLURM_STEP_NODELIST", "-"), ("SLURM_NODELIST", "gpu[5-6]")], "gpu5")]
#[case(&[("SLURM_STEP_NODELIST", "?["), ("MASTER_ADDR", "told")], "told")]
fn ranks_meet_at_the_first_node(#[case] changes: &[(&str, &str)], #[case] host: &str) {
    assert_eq!(store_of(&under_slurm(changes).unwrap()).host, host);
}

#[rstest]
#[case(&[("SLURM_STEP_NODELIST", "broken[1-2")], "SLURM_STEP_NODELIST=broken[1-2")]
#[case(&[("SLURM_STEP_NODELIST", "-")], "SLURM_STEP_NODELIST, SLURM_JOB_NODELIST")]
fn a_list_of_nodes_that_does_not_help_is_named(
    #[case] changes: &[(&str, &str)],
    #[case] expected: &str,
) {
    let text = text(under_slurm(changes));
    assert!(text.contains(expected), "{text}");
}

#[test]
fn slurm_says_where_to_meet_and_users_may_say_otherwise() {
    let world = |more: &[(&str, &str)]| World::from_vars(SLURM.iter().chain(more).copied());
    let store = |more: &[(&str, &str)]| store_of(&world(more).unwrap()).clone();
    let plain = store(&[]);
    assert_eq!(plain.host, "gpu07");
    assert_eq!(
        plain.port,
        16_384 + u16::try_from(1_234_569 % 16_000).unwrap()
    );
    assert_eq!(plain.token, "slurm 1234567.2");
    let other = store(&[("COLLECTIVES_STORE_HOST", "ib0"), ("MASTER_PORT", "7000")]);
    assert_eq!((other.host.as_str(), other.port), ("ib0", 7000));
}

#[test]
fn mpi_launchers_need_to_be_told_where_to_meet() {
    let world = |more: &[(&str, &str)]| World::from_vars(OPEN_MPI.iter().chain(more).copied());
    let unsaid = world(&[]).unwrap();
    assert!(!unsaid.knows_where_to_meet());
    let error = unsaid.bootstrap(Duration::from_secs(1)).unwrap_err();
    for part in ["Open MPI", "COLLECTIVES_STORE_FILE", "MASTER_ADDR"] {
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
    let told = world(&[("MASTER_ADDR", "node-0"), ("MASTER_PORT", "29500")]).unwrap();
    assert!(told.knows_where_to_meet());
    assert_eq!(store_of(&told).host, "node-0");
    let file = world(&[("COLLECTIVES_STORE_FILE", "/shared/rendezvous")]).unwrap();
    assert_eq!(file.meeting, Meeting::File("/shared/rendezvous".into()));
    assert!(text(world(&[("MASTER_ADDR", "node-0")])).contains("no port"));
    assert!(text(world(&[("COLLECTIVES_STORE_PORT", "1")])).contains("no host"));
}

#[test]
fn a_file_comes_before_what_torchrun_says() {
    let world = with(&[("COLLECTIVES_STORE_FILE", "f"), ("MASTER_ADDR", "-")]).unwrap();
    assert_eq!(world.meeting, Meeting::File("f".into()));
}

#[test]
fn everything_that_is_wrong_is_said_at_once() {
    let text = text(with(&[
        ("RANK", "first"),
        ("WORLD_SIZE", "-"),
        ("MASTER_PORT", "123456"),
        ("MASTER_ADDR", ""),
    ]));
    for part in [
        "RANK=first is not a rank",
        "WORLD_SIZE is not set",
        "MASTER_PORT=123456 is not a port",
        "MASTER_ADDR is empty",
        "looked for RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[rstest]
#[case(&[("RANK", "8")], "RANK=8 is outside WORLD_SIZE=8")]
#[case(&[("RANK", "-1")], "RANK=-1 is not a rank")]
#[case(&[("RANK", "1\n2")], r"RANK=1\n2 is not a rank")]
#[case(&[("WORLD_SIZE", "0")], "outside WORLD_SIZE=0")]
#[case(&[("LOCAL_RANK", "4")], "LOCAL_RANK=4 is outside LOCAL_WORLD_SIZE=4")]
#[case(&[("LOCAL_WORLD_SIZE", "9")], "LOCAL_WORLD_SIZE=9 exceeds WORLD_SIZE=8")]
#[case(&[("LOCAL_RANK", "8"), ("LOCAL_WORLD_SIZE", "-")], "LOCAL_RANK=8 is outside")]
#[case(&[("LOCAL_RANK", "-"), ("LOCAL_WORLD_SIZE", "0")], "LOCAL_WORLD_SIZE=0")]
#[case(&[("LOCAL_RANK", "-"), ("MASTER_ADDR", "-")], "MASTER_ADDR is not set")]
#[case(&[("LOCAL_WORLD_SIZE", "many")], "LOCAL_WORLD_SIZE=many is not a number of ranks")]
#[case(&[("MASTER_PORT", "0")], "port 0")]
#[case(&[("COLLECTIVES_STORE_PORT", "x")], "COLLECTIVES_STORE_PORT=x is not a port")]
#[case(&[("COLLECTIVES_STORE_LISTENER", "7")], "is not `stdin`")]
fn a_wrong_value_is_named(#[case] changes: &[(&str, &str)], #[case] expected: &str) {
    let text = text(with(changes));
    assert!(text.contains(expected), "{text}");
}

#[cfg(unix)]
#[test]
fn a_value_that_is_no_unicode_is_named() {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;

    let vars = [
        ("RANK", OsString::from_vec(vec![0xFF])),
        ("WORLD_SIZE", "1".into()),
    ];
    assert!(text(World::from_vars(vars)).contains("is not valid Unicode"));
}

#[rstest]
#[case(&[], 29500, "")]
#[case(&[("TORCHELASTIC_USE_AGENT_STORE", "False")], 29500, "")]
#[case(&[("TORCHELASTIC_USE_AGENT_STORE", "True")], 29501, "")]
#[case(&[("TORCHELASTIC_USE_AGENT_STORE", "True"), ("MASTER_PORT", "65535")], 65534, "")]
#[case(&[("TORCHELASTIC_USE_AGENT_STORE", "True"), ("COLLECTIVES_STORE_PORT", "7")], 7, "")]
#[case(&[("TORCHELASTIC_RUN_ID", "run")], 29500, "run")]
#[case(&[("TORCHELASTIC_RUN_ID", "run"), ("COLLECTIVES_STORE_TOKEN", "t")], 29500, "t")]
fn the_store_is_beside_the_agent(
    #[case] changes: &[(&str, &str)],
    #[case] port: u16,
    #[case] token: &str,
) {
    let world = with(changes).unwrap();
    let store = store_of(&world);
    assert_eq!((store.port, store.token.as_str()), (port, token));
}

#[test]
fn ranks_meet_through_their_environment() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let world = |rank: usize| {
        let rank = rank.to_string();
        let vars = [
            ("RANK", rank.clone()),
            ("LOCAL_RANK", rank),
            ("WORLD_SIZE", "2".to_owned()),
            ("MASTER_ADDR", "localhost".to_owned()),
            ("MASTER_PORT", port.to_string()),
        ];
        World::from_vars(vars).unwrap()
    };
    let deadline = Duration::from_secs(60);
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            let end = world(1).bootstrap(deadline).unwrap();
            end.all_gather("a", b"one", deadline).unwrap()
        });
        let end = world(0).place().unwrap().listener(listener).join().unwrap();
        let all = crate::bootstrap::Bootstrap::all_gather(&end, "a", b"zero", deadline).unwrap();
        assert_eq!(all, [&b"zero"[..], b"one"]);
        assert_eq!(other.join().unwrap(), all);
    });
}
