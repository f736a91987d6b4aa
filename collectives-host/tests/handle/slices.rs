//! Host slices: blocking calls, and scopes that wait.

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
