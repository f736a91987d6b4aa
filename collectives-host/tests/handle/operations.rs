//! Every operation gives the right elements, staged and not, in place and not.

use collectives_core::buffer::Buffer;
use collectives_core::error::{ErrorKind, Misuse};
use collectives_core::path::{Path, Reason, Staging};
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;
use collectives_host::model::StreamMode::{self, Asynchronous, Inline};
use rstest::rstest;

use crate::{all, device, ranks};

const STAGINGS: [Staging; 3] = [Staging::Auto, Staging::Forced, Staging::Never];

#[rstest]
fn all_reduce_in_place_and_not(
    #[values(1, 2, 3, 4)] world: usize,
    #[values(Inline, Asynchronous)] mode: StreamMode,
) {
    all(mode, world, |collectives, stream| {
        let device = device(collectives);
        for staging in STAGINGS {
            collectives.set_staging(staging);
            let mine = collectives.rank().0 + 1;
            let sum: u32 = (1..=u32::try_from(world).unwrap()).sum();
            let mut tensor = Buffer::from_slice(&device, &[mine; 1000], stream)?;
            collectives.all_reduce(&mut tensor, ReduceOp::Sum, stream)?;
            assert_eq!(tensor.read(stream)?, [sum; 1000]);

            let send = Buffer::from_slice(&device, &[mine; 77], stream)?;
            let mut recv = Buffer::<u32>::zeroed(&device, 77, stream)?;
            collectives.all_reduce_into(&send, &mut recv, ReduceOp::Sum, stream)?;
            assert_eq!(recv.read(stream)?, [sum; 77]);
            assert_eq!(
                send.read(stream)?,
                [mine; 77],
                "out of place keeps its input"
            );
        }
        Ok(())
    });
}

#[rstest]
fn reduce_scatter_and_all_gather_with_even_and_uneven_parts(
    #[values(2, 3, 4)] world: usize,
    #[values(Inline, Asynchronous)] mode: StreamMode,
) {
    all(mode, world, |collectives, stream| {
        let device = device(collectives);
        let rank = collectives.rank().index();
        let uneven: Vec<usize> = (0..world).map(|r| 5 * r + 1).collect();
        for staging in STAGINGS {
            collectives.set_staging(staging);
            for counts in [vec![6; world], uneven.clone()] {
                let total: usize = counts.iter().sum();
                let start: usize = counts[..rank].iter().sum();
                let whole: Vec<i64> = (0..total as i64).collect();
                let send = Buffer::from_slice(&device, &whole, stream)?;
                let mut part = Buffer::<i64>::zeroed(&device, counts[rank], stream)?;
                collectives.reduce_scatter_v(&send, &mut part, &counts, ReduceOp::Sum, stream)?;
                let expected: Vec<_> = whole[start..start + counts[rank]]
                    .iter()
                    .map(|value| value * world as i64)
                    .collect();
                assert_eq!(part.read(stream)?, expected);

                let mut gathered = Buffer::<i64>::zeroed(&device, total, stream)?;
                collectives.all_gather_v(&part, &mut gathered, &counts, stream)?;
                let expected: Vec<_> = whole.iter().map(|value| value * world as i64).collect();
                assert_eq!(gathered.read(stream)?, expected);

                // In place: this rank's part of the whole.
                let whole = Buffer::from_slice(&device, &whole, stream)?;
                let mut mine = whole.slice(start..start + counts[rank])?;
                collectives.reduce_scatter_v(&whole, &mut mine, &counts, ReduceOp::Sum, stream)?;
                let mut result = whole.clone();
                collectives.all_gather_v(&mine, &mut result, &counts, stream)?;
                assert_eq!(whole.read(stream)?, expected);
            }
        }
        Ok(())
    });
}

#[rstest]
fn rooted_operations_and_all_to_all(#[values(Inline, Asynchronous)] mode: StreamMode) {
    let world = 3;
    all(mode, world, |collectives, stream| {
        let device = device(collectives);
        let rank = collectives.rank().0;
        let root = Rank(1);
        let is_root = collectives.rank() == root;

        let mut tensor = Buffer::from_slice(&device, &[rank as f32; 9], stream)?;
        collectives.broadcast(&mut tensor, root, stream)?;
        assert_eq!(tensor.read(stream)?, [1.0; 9]);

        let mut tensor = Buffer::from_slice(&device, &[rank as f32; 9], stream)?;
        collectives.reduce(&mut tensor, ReduceOp::Max, root, stream)?;
        let expected = if is_root { 2.0 } else { rank as f32 };
        assert_eq!(tensor.read(stream)?, [expected; 9]);

        let mine = Buffer::from_slice(&device, &[rank; 2], stream)?;
        let mut gathered = Buffer::<u32>::zeroed(&device, 2 * world, stream)?;
        let recv = is_root.then_some(&mut gathered);
        collectives.gather(&mine, recv, root, stream)?;
        if is_root {
            assert_eq!(gathered.read(stream)?, [0, 0, 1, 1, 2, 2]);
        }

        let mut part = Buffer::<u32>::zeroed(&device, 2, stream)?;
        let send = is_root.then_some(&gathered);
        collectives.scatter(send, &mut part, root, stream)?;
        assert_eq!(part.read(stream)?, [rank; 2]);

        let send: Vec<u32> = (0..3).map(|to| 10 * rank + to).collect();
        let send = Buffer::from_slice(&device, &send, stream)?;
        let mut recv = Buffer::<u32>::zeroed(&device, 3, stream)?;
        collectives.all_to_all(&send, &mut recv, stream)?;
        assert_eq!(recv.read(stream)?, [rank, 10 + rank, 20 + rank]);

        // Rank r sends r + 1 elements to everybody.
        let count = rank as usize + 1;
        let send = Buffer::from_slice(&device, &vec![rank; count * world], stream)?;
        let mut recv = Buffer::<u32>::zeroed(&device, 6, stream)?;
        collectives.all_to_all_v(&send, &[count; 3], &mut recv, &[1, 2, 3], stream)?;
        assert_eq!(recv.read(stream)?, [0, 1, 1, 2, 2, 2]);
        collectives.barrier(stream)?;
        Ok(())
    });
}

#[rstest]
fn groups_stage_together_and_messages_meet_in_any_order(
    #[values(Inline, Asynchronous)] mode: StreamMode,
) {
    all(mode, 4, |collectives, stream| {
        let device = device(collectives);
        let rank = collectives.rank().0;
        let (left, right) = (Rank((rank + 3) % 4), Rank((rank + 1) % 4));
        let mut first = Buffer::from_slice(&device, &[rank; 5], stream)?;
        let mut second = Buffer::from_slice(&device, &[rank as f64; 3000], stream)?;
        let outgoing = Buffer::from_slice(&device, &[rank; 8], stream)?;
        let mut incoming = Buffer::<u32>::zeroed(&device, 8, stream)?;
        let reports = collectives.group(stream, |group| {
            group.recv(&mut incoming, left)?;
            group.all_reduce(&mut first, ReduceOp::Sum)?;
            group.send(&outgoing, right)?;
            group.all_reduce(&mut second, ReduceOp::Average)?;
            Ok(())
        })?;
        assert_eq!(first.read(stream)?, [6; 5]);
        assert_eq!(second.read(stream)?, [1.5; 3000]);
        assert_eq!(incoming.read(stream)?, [left.0; 8]);
        let paths: Vec<_> = reports.iter().map(|report| report.path).collect();
        use Path::{Direct, Staged};
        assert_eq!(paths, [Direct, Staged, Direct, Staged]);
        assert_eq!(reports[1].slot, reports[3].slot, "one lease for the group");
        assert_eq!(collectives.stats().requests, 1);
        Ok(())
    });
}

#[rstest]
fn zero_elements_are_a_no_op_that_takes_no_scratch(
    #[values(Inline, Asynchronous)] mode: StreamMode,
) {
    all(mode, 2, |collectives, stream| {
        let device = device(collectives);
        let mut empty = Buffer::<f32>::zeroed(&device, 0, stream)?;
        let report = collectives.all_reduce(&mut empty, ReduceOp::Sum, stream)?;
        assert_eq!((report.path, report.reason), (Path::Direct, Reason::Empty));
        assert_eq!(collectives.stats().requests, 0);
        Ok(())
    });
}

#[rstest]
fn a_pre_multiplied_sum_uses_each_ranks_scalar(#[values(Inline, Asynchronous)] mode: StreamMode) {
    use collectives_core::reduce::Scalar;
    all(mode, 3, |collectives, stream| {
        let device = device(collectives);
        let scalar = Scalar::new(f32::from(u8::try_from(collectives.rank().0).unwrap()));
        let mut tensor = Buffer::from_slice(&device, &[2.0_f32; 10], stream)?;
        collectives.all_reduce(&mut tensor, ReduceOp::PreMulSum(scalar), stream)?;
        assert_eq!(tensor.read(stream)?, [6.0; 10]);
        Ok(())
    });
}

#[rstest]
fn mistakes_are_typed_and_leave_the_communicator_usable(
    #[values(Inline, Asynchronous)] mode: StreamMode,
) {
    all(mode, 2, |collectives, stream| {
        let device = device(collectives);
        let send = Buffer::from_slice(&device, &[1_u8; 3], stream)?;
        let mut recv = Buffer::<u8>::zeroed(&device, 3, stream)?;
        let mut floats = Buffer::<f32>::zeroed(&device, 3, stream)?;
        let error = collectives
            .reduce_scatter(&send, &mut recv, ReduceOp::Sum, stream)
            .unwrap_err();
        let world_size = 2;
        assert_eq!(
            error.misuse(),
            Some(&Misuse::NotDivisible {
                count: 3,
                world_size
            })
        );
        let error = collectives
            .all_reduce_into(&send, &mut floats, ReduceOp::Sum, stream)
            .unwrap_err();
        assert!(matches!(error.misuse(), Some(Misuse::DTypeDiffers { .. })));
        let error = collectives
            .broadcast(&mut recv, Rank(2), stream)
            .unwrap_err();
        assert!(matches!(
            error.misuse(),
            Some(Misuse::RankOutOfRange { .. })
        ));
        assert_eq!(error.operation(), Some("broadcast"));
        let whole = Buffer::<u8>::zeroed(&device, 8, stream)?;
        let mut shifted = whole.slice(2..6)?;
        let error = collectives
            .all_reduce_into(&whole.slice(..4)?, &mut shifted, ReduceOp::Sum, stream)
            .unwrap_err();
        assert_eq!(error.misuse(), Some(&Misuse::Overlap));
        collectives.all_reduce(&mut recv, ReduceOp::Sum, stream)?;
        Ok(())
    });
}

#[rstest]
fn ranks_that_disagree_get_one_error_and_go_on(#[values(Inline, Asynchronous)] mode: StreamMode) {
    let results = ranks(mode, 3, "geometric", |collectives, stream| {
        let device = device(collectives);
        let count = if collectives.rank() == Rank(2) { 8 } else { 7 };
        let mut tensor = Buffer::from_slice(&device, &vec![1_i32; count], stream)?;
        let result = collectives.all_reduce(&mut tensor, ReduceOp::Sum, stream);
        let error = crate::error_of(result, &*device, stream);
        // A stream keeps its asynchronous error.
        let stream = &device.create_stream()?;
        assert_eq!(tensor.read(stream)?, vec![1; count], "nothing moved");
        let mut tensor = Buffer::from_slice(&device, &[1_i32; 4], stream)?;
        collectives.all_reduce(&mut tensor, ReduceOp::Sum, stream)?;
        assert_eq!(tensor.read(stream)?, [3; 4]);
        Ok(error)
    });
    for error in results {
        let error = error.unwrap();
        assert!(
            matches!(error.kind(), ErrorKind::Mismatch { rank: Rank(2), .. }),
            "{error}"
        );
    }
}

#[rstest]
fn a_child_of_split_has_its_own_ranks_and_scratch(
    #[values(Inline, Asynchronous)] mode: StreamMode,
) {
    all(mode, 4, |collectives, stream| {
        let device = device(collectives);
        let rank = collectives.rank().0;
        let child = collectives.split(Some(rank % 2), 9 - rank, || crate::pool("exact"))?;
        let mut child = child.unwrap();
        assert_eq!(child.world_size(), 2);
        assert_eq!(child.rank(), Rank(u32::from(rank < 2)), "ordered by key");
        let mut tensor = Buffer::from_slice(&device, &[rank; 64], stream)?;
        child.all_reduce(&mut tensor, ReduceOp::Sum, stream)?;
        assert_eq!(
            tensor.read(stream)?,
            [if rank % 2 == 0 { 2 } else { 4 }; 64]
        );
        let none = collectives.split(None, 0, || crate::pool("exact"))?;
        assert!(none.is_none());
        let _deferred = child.close()?;
        Ok(())
    });
}
