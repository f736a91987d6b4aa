//! Host slices: blocking calls, and scopes that wait.

use collectives_core::error::{Misuse, Result};
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;
use collectives_host::model::StreamMode::{self, Asynchronous, Inline};
use rstest::rstest;

use crate::all;

#[rstest]
fn blocking_calls_leave_the_result_in_the_slice(#[values(Inline, Asynchronous)] mode: StreamMode) {
    all(mode, 3, |collectives, _| {
        let rank = collectives.rank().0;
        let mut values = vec![f64::from(rank); 10];
        collectives.all_reduce_host(&mut values, ReduceOp::Sum)?;
        assert_eq!(values, [3.0; 10]);
        let mut gathered = vec![0; 6];
        collectives.all_gather_host(&[rank; 2], &mut gathered)?;
        assert_eq!(gathered, [0, 0, 1, 1, 2, 2]);
        let mut part = [0_u32; 2];
        collectives.reduce_scatter_host(&gathered, &mut part, ReduceOp::Max)?;
        assert_eq!(part, [rank; 2]);
        let mut turned = [0_u32; 3];
        collectives.all_to_all_host(&[rank; 3], &mut turned)?;
        assert_eq!(turned, [0, 1, 2]);
        collectives.broadcast_host(&mut turned, Rank(2))?;
        collectives.barrier_host()?;
        Ok(())
    });
}

#[rstest]
fn a_scope_waits_for_everything_in_it(#[values(Inline, Asynchronous)] mode: StreamMode) {
    all(mode, 2, |collectives, _| {
        let (mut first, mut second) = (vec![1_i32; 100_000], vec![2_i32; 100_000]);
        let (mut scattered, gathered) = (vec![0_i32; 50_000], vec![5_i32; 100_000]);
        collectives.scope(|scope| {
            scope.all_reduce(&mut first, ReduceOp::Sum)?;
            scope.all_reduce(&mut second, ReduceOp::Product)?;
            scope.reduce_scatter(&gathered, &mut scattered, ReduceOp::Sum)?;
            scope.barrier()
        })?;
        assert!(first.iter().all(|&value| value == 2));
        assert!(second.iter().all(|&value| value == 4));
        assert!(scattered.iter().all(|&value| value == 10));
        Ok(())
    });
}

#[rstest]
fn a_scope_that_fails_waits_too(#[values(Inline, Asynchronous)] mode: StreamMode) {
    all(mode, 2, |collectives, _| {
        let mut values = vec![1_i32; 1000];
        let error = collectives.scope(|scope| {
            scope.all_reduce(&mut values, ReduceOp::Sum)?;
            Err::<(), _>(collectives_core::error::Error::config("on purpose"))
        });
        assert!(error.unwrap_err().to_string().contains("on purpose"));
        assert_eq!(values, [2; 1000]);
        Ok(())
    });
}

#[rstest]
fn parts_of_different_length(#[values(Inline, Asynchronous)] mode: StreamMode) {
    all(mode, 3, |collectives, _| {
        let rank = collectives.rank().0;
        let me = collectives.rank().index();
        // The second rank has nothing.
        let counts = [2, 0, 3];
        let mut gathered = [9_u32; 5];
        collectives.all_gather_v_host(&vec![rank; counts[me]], &mut gathered, &counts)?;
        assert_eq!(gathered, [0, 0, 2, 2, 2]);
        let mut part = vec![0; counts[me]];
        collectives.reduce_scatter_v_host(&[1, 2, 3, 4, 5], &mut part, &counts, ReduceOp::Sum)?;
        assert_eq!(part, [[3, 6].as_slice(), &[], &[9, 12, 15]][me]);
        // Rank r sends r + 1 elements to everybody.
        let mut received = [9_u32; 6];
        let send = vec![rank; 3 * (me + 1)];
        collectives.all_to_all_v_host(&send, &[me + 1; 3], &mut received, &[1, 2, 3])?;
        assert_eq!(received, [0, 1, 1, 2, 2, 2]);
        let (send, mut recv) = ([f64::from(rank); 4], [0.0; 4]);
        collectives.all_reduce_into_host(&send, &mut recv, ReduceOp::Max)?;
        assert_eq!((send, recv), ([f64::from(rank); 4], [2.0; 4]));
        Ok(())
    });
}

#[rstest]
fn rooted_calls_and_messages(#[values(Inline, Asynchronous)] mode: StreamMode) {
    all(mode, 3, |collectives, _| {
        let rank = collectives.rank().0;
        let root = Rank(1);
        let is_root = collectives.rank() == root;
        let mut sum = [rank; 4];
        collectives.reduce_host(&mut sum, ReduceOp::Sum, root)?;
        assert_eq!(sum, if is_root { [3; 4] } else { [rank; 4] });
        let mut all = [9_u32; 6];
        let recv = is_root.then_some(&mut all[..]);
        collectives.gather_host(&[rank, rank + 10], recv, root)?;
        let expected = [0, 10, 1, 11, 2, 12];
        assert_eq!(all, if is_root { expected } else { [9; 6] });
        let mut mine = [9_u32; 2];
        collectives.scatter_host(is_root.then_some(&expected[..]), &mut mine, root)?;
        assert_eq!(mine, [rank, rank + 10]);
        // Around, one after another: the first rank begins and gets it back.
        let (next, last) = (Rank((rank + 1) % 3), Rank((rank + 2) % 3));
        let mut token = vec![0_u32; 40_000];
        if rank == 0 {
            collectives.send_host(&vec![1_u32; 40_000], next)?;
            collectives.recv_host(&mut token, last)?;
        } else {
            collectives.recv_host(&mut token, last)?;
            token.iter_mut().for_each(|value| *value += 1);
            collectives.send_host(&token, next)?;
        }
        let passed = if rank == 0 { 3 } else { rank + 1 };
        assert!(token.iter().all(|&value| value == passed));
        Ok(())
    });
}

#[rstest]
fn a_scope_has_every_call(#[values(Inline, Asynchronous)] mode: StreamMode) {
    all(mode, 2, |collectives, _| {
        let rank = collectives.rank().0;
        let (root, peer, is_root) = (Rank(0), Rank(1 - rank), rank == 0);
        let (mine, counts) = (vec![rank; 1 + rank as usize], [1, 2]);
        let (mut all, mut part) = ([9_u32; 3], vec![9_u32; counts[rank as usize]]);
        let (mut gathered, whole, mut scattered) = ([9_u32; 2], [5_u32, 6], [9_u32; 1]);
        let (own, mut message, mut sum) = ([rank], [9_u32; 1], [rank + 1; 2]);
        collectives.scope(|scope| {
            scope.all_gather_v(&mine, &mut all, &counts)?;
            scope.reduce_scatter_v(&[1, 2, 3], &mut part, &counts, ReduceOp::Sum)?;
            scope.gather(&own, is_root.then_some(&mut gathered[..]), root)?;
            scope.scatter(is_root.then_some(&whole[..]), &mut scattered, root)?;
            scope.reduce(&mut sum, ReduceOp::Product, root)?;
            match is_root {
                true => scope.send(&own, peer),
                false => scope.recv(&mut message, peer),
            }
        })?;
        assert_eq!(all, [0, 1, 1]);
        assert_eq!(part, [[2].as_slice(), &[4, 6]][rank as usize]);
        assert_eq!(gathered, if is_root { [0, 1] } else { [9, 9] });
        assert_eq!(scattered, [5 + rank]);
        assert_eq!(sum, [2, 2]);
        assert_eq!(message, if is_root { [9] } else { [0] });
        Ok(())
    });
}

#[rstest]
fn mistakes_are_those_of_tensors(#[values(Inline, Asynchronous)] mode: StreamMode) {
    all(mode, 2, |collectives, _| {
        let mut two = [0_u8; 2];
        let refused = |result: Result<_>| result.map(drop).unwrap_err().misuse().cloned();
        let counts = |expected, actual| Some(Misuse::WrongCountsLength { expected, actual });
        let short = collectives.all_gather_v_host(&[1_u8], &mut two, &[1]);
        assert_eq!(refused(short), counts(2, 1));
        let count = |which, expected, actual| {
            Some(Misuse::WrongCount {
                which,
                expected,
                actual,
            })
        };
        let long = collectives.reduce_scatter_v_host(&[1; 3], &mut two, &[2, 2], ReduceOp::Sum);
        assert_eq!(refused(long), count("send", 4, 3));
        let beyond = collectives.reduce_host(&mut two, ReduceOp::Sum, Rank(2));
        assert!(matches!(
            refused(beyond),
            Some(Misuse::RankOutOfRange { .. })
        ));
        let beyond = collectives.send_host(&two, Rank(7));
        assert!(matches!(
            refused(beyond),
            Some(Misuse::RankOutOfRange { .. })
        ));
        // The root alone has both sides.
        let me = collectives.rank();
        let not_root = Rank(1 - me.0);
        let whole = collectives.gather_host(&[1_u8], Some(&mut two), not_root);
        assert_eq!(refused(whole), count("recv", 0, 2));
        let nothing = collectives.scatter_host(None, &mut two, me);
        assert_eq!(refused(nothing), count("send", 4, 0));
        let odd = collectives.all_to_all_v_host(&[1_u8; 2], &[1, 1], &mut two, &[1, 2]);
        assert_eq!(refused(odd), count("recv", 3, 2));
        // Nothing was enqueued.
        collectives
            .all_reduce_host(&mut two, ReduceOp::Sum)
            .map(drop)
    });
}
