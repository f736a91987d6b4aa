//! Windows, and ranks that do not do the same with them.

use collectives_core::communicator::Communicator as _;
use collectives_core::error::{ErrorKind, Field, Misuse, Result, Unsupported};
use collectives_core::memory::Memory;
use collectives_core::rank::Rank;
use collectives_core::symmetric::SymmetricMemory;

use crate::calls::on_actors;
use crate::control;
use crate::life::Actor;

const BYTES: usize = 64 << 10;

fn symmetric(actor: &mut Actor) -> &mut dyn SymmetricMemory {
    let comm = actor.handle.communicator_mut();
    comm.symmetric().expect("symmetric memory")
}

fn allocate(actor: &mut Actor) -> Memory {
    symmetric(actor).allocate(BYTES, None).expect("memory")
}

/// Fails unless a window can be made and retired, and the ranks that many as before.
fn works(actor: &mut Actor, windows: usize) {
    let memory = allocate(actor);
    let window = symmetric(actor).register(&memory).expect("a window");
    assert_eq!(symmetric(actor).window_count(), windows + 1);
    symmetric(actor).retire(window).expect("its end");
    assert_eq!(symmetric(actor).window_count(), windows);
}

pub(crate) fn different() {
    on_actors(|actor| {
        let [one, other] = [allocate(actor), allocate(actor)];
        let windows = [&one, &other].map(|memory| symmetric(actor).register(memory));
        let [one, other] = windows.map(|window| window.expect("a window"));
        let before = symmetric(actor).window_count();
        let mine = [one, other][actor.handle.rank().index()];
        let error = symmetric(actor)
            .retire(mine)
            .expect_err("ranks that differ");
        let kind = error.kind();
        let told = matches!(
            kind,
            ErrorKind::Mismatch {
                field: Field::Window,
                ..
            }
        );
        assert!(told && !error.poisons(), "{error}");
        assert_eq!(
            symmetric(actor).window_count(),
            before,
            "nothing is retired"
        );
        for window in [other, one] {
            symmetric(actor).retire(window).expect("ranks that agree");
        }
        let again = symmetric(actor)
            .retire(one)
            .expect_err("a window that is gone");
        assert!(
            matches!(again.misuse(), Some(Misuse::UnknownWindow)),
            "{again}"
        );
        works(actor, before - 2);
    });
}

pub(crate) fn refused_on_one() {
    on_actors(|actor| {
        let before = symmetric(actor).window_count();
        let memory = allocate(actor);
        if actor.handle.rank() == Rank(1) {
            control::refuse_window();
        }
        let error = symmetric(actor).register(&memory).expect_err("a refusal");
        let wanted = ErrorKind::Unsupported(Unsupported::NullWindow);
        assert_eq!(*error.kind(), wanted, "{error}");
        assert!(!error.poisons());
        assert_eq!(symmetric(actor).window_count(), before);
        works(actor, before);
    });
}

pub(crate) fn unsuitable() {
    on_actors(|actor| {
        let before = symmetric(actor).window_count();
        let ordinary = actor.device.allocate(BYTES).expect("memory");
        let memory = allocate(actor);
        let window = symmetric(actor).register(&memory).expect("a window");
        let symmetric_or = |odd: &Memory, actor: &mut Actor| -> Result<()> {
            // Only one rank is wrong, and all are told.
            let other = allocate(actor);
            let mine = match actor.handle.rank() {
                Rank(0) => odd,
                _ => &other,
            };
            symmetric(actor).register(mine).map(drop)
        };
        let no_window = symmetric_or(&ordinary, actor).expect_err("ordinary memory");
        let known = matches!(no_window.misuse(), Some(Misuse::NotRegistrable { .. }));
        assert!(known, "{no_window}");
        let twice = symmetric_or(&memory, actor).expect_err("the same memory");
        assert!(
            matches!(twice.misuse(), Some(Misuse::AlreadyRegistered)),
            "{twice}"
        );
        let longer = 2 * BYTES;
        let longer = symmetric(actor).allocate(longer, None).expect("memory");
        let odd = symmetric_or(&longer, actor).expect_err("other bytes");
        let told = matches!(
            odd.kind(),
            ErrorKind::Mismatch {
                field: Field::Bytes,
                ..
            }
        );
        assert!(told, "{odd}");
        for error in [no_window, twice, odd] {
            assert!(!error.poisons(), "{error}");
        }
        symmetric(actor).retire(window).expect("its end");
        works(actor, before);
    });
}

pub(crate) fn peers() {
    on_actors(|actor| {
        let memory = allocate(actor);
        let window = symmetric(actor).register(&memory).expect("a window");
        let (me, peer) = (actor.handle.rank(), Rank(1 - actor.handle.rank().0));
        let mine = symmetric(actor).peer_address(window, me, 12);
        assert_eq!(mine.expect("an address"), memory.addr().offset(12));
        let theirs = symmetric(actor).peer_address(window, peer, 12);
        let theirs = theirs.expect("an address").value();
        assert_ne!(
            theirs,
            memory.addr().value() + 12,
            "the peer has memory of its own"
        );
        assert_eq!(theirs % 4096, 12);
        let end = symmetric(actor).peer_address(window, peer, BYTES);
        assert_eq!(end.expect("the end").value(), theirs - 12 + BYTES);
        let beyond = symmetric(actor).peer_address(window, peer, BYTES + 1);
        let beyond = beyond.expect_err("nothing there");
        assert!(
            matches!(beyond.misuse(), Some(Misuse::OutOfBounds { .. })),
            "{beyond}"
        );
        let nobody = symmetric(actor).peer_address(window, Rank(2), 0);
        let nobody = nobody.expect_err("two ranks");
        assert!(
            matches!(nobody.misuse(), Some(Misuse::RankOutOfRange { .. })),
            "{nobody}"
        );
        symmetric(actor).retire(window).expect("its end");
    });
}
