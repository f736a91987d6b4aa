//! The operations that move elements without touching them.

use crate::common::{Rig, call, enqueue, noise, on_every_rank, operand};
use collectives_core::collective::{Collective, Counts, Op};
use collectives_core::communicator::Communicator;
use collectives_core::dtype::DType;
use collectives_core::rank::Rank;
use collectives_core::reduce::ReduceOp;
use rstest::rstest;

const COUNTS: [usize; 5] = [1, 5, 100, 3000, 300_000];

fn input(rank: usize, bytes: usize) -> Vec<u8> {
    noise(rank * 31 + bytes, bytes)
}

fn vector(ranks: usize, count: usize, uneven: bool) -> Vec<usize> {
    let each = |rank| if uneven { count * rank } else { count };
    (0..ranks).map(each).collect()
}

fn counts(vector: &[usize], uneven: bool) -> Counts<'_> {
    if uneven {
        Counts::Uneven(vector)
    } else {
        Counts::Even(vector[0])
    }
}

fn with_each(ranks: usize, uneven: bool, body: impl Fn(&mut Rig, DType, &[usize]) + Sync) {
    on_every_rank(ranks, |rig| {
        for dtype in [DType::U8, DType::Bf16, DType::F64] {
            for count in COUNTS {
                let vector = vector(ranks, count, uneven);
                if vector.iter().any(|&count| count > 0) {
                    body(rig, dtype, &vector);
                }
            }
        }
    });
}

#[rstest]
fn all_gather_concatenates_in_rank_order(
    #[values(1, 2, 3, 5)] ranks: usize,
    #[values(false, true)] uneven: bool,
) {
    with_each(ranks, uneven, |rig, dtype, vector| {
        let (me, size) = (rig.rank(), dtype.size());
        let all: Vec<_> = (0..ranks)
            .map(|rank| input(rank, vector[rank] * size))
            .collect();
        let expected = all.concat();
        let begin: usize = vector[..me].iter().sum::<usize>() * size;
        let mut send = all[me].clone();
        let mut recv = vec![0; expected.len()];
        let (from, to) = (operand(&mut send), operand(&mut recv));
        rig.run(&[call(Op::AllGather, dtype, from, to, counts(vector, uneven))])
            .unwrap();
        assert_eq!(recv, expected);
        // In place.
        recv.fill(0);
        recv[begin..begin + send.len()].copy_from_slice(&all[me]);
        let from = operand(&mut recv[begin..begin + all[me].len()]);
        let to = operand(&mut recv);
        rig.run(&[call(Op::AllGather, dtype, from, to, counts(vector, uneven))])
            .unwrap();
        assert_eq!(recv, expected);
    });
}

#[rstest]
fn gather_and_scatter_are_inverse(
    #[values(1, 2, 3, 5)] ranks: usize,
    #[values(false, true)] uneven: bool,
) {
    with_each(ranks, uneven, |rig, dtype, vector| {
        let (me, size) = (rig.rank(), dtype.size());
        let root = vector.len() / 2;
        let all: Vec<_> = (0..ranks)
            .map(|rank| input(rank, vector[rank] * size))
            .collect();
        let mut send = all[me].clone();
        let mut whole = vec![0; if me == root { all.concat().len() } else { 0 }];
        let op = Op::Gather {
            root: Rank::new(root),
        };
        let (from, to) = (operand(&mut send), operand(&mut whole));
        rig.run(&[call(op, dtype, from, to, counts(vector, uneven))])
            .unwrap();
        if me == root {
            assert_eq!(whole, all.concat());
        }
        send.fill(0);
        let op = Op::Scatter {
            root: Rank::new(root),
        };
        rig.run(&[call(op, dtype, to, from, counts(vector, uneven))])
            .unwrap();
        assert_eq!(send, all[me]);
    });
}

#[rstest]
fn broadcast_gives_everyone_the_roots_input(#[values(1, 2, 3, 5)] ranks: usize) {
    with_each(ranks, false, |rig, dtype, vector| {
        let (me, bytes) = (rig.rank(), vector[0] * dtype.size());
        for root in 0..ranks {
            let op = Op::Broadcast {
                root: Rank::new(root),
            };
            let mut send = input(root, if me == root { bytes } else { 0 });
            let mut recv = vec![0; bytes];
            let (from, to) = (operand(&mut send), operand(&mut recv));
            rig.run(&[call(op, dtype, from, to, Counts::Even(vector[0]))])
                .unwrap();
            assert_eq!(recv, input(root, bytes));
            if me != root {
                recv.fill(0);
            }
            let from = if me == root { to } else { from };
            rig.run(&[call(op, dtype, from, to, Counts::Even(vector[0]))])
                .unwrap();
            assert_eq!(recv, input(root, bytes), "in place");
        }
    });
}

#[rstest]
fn all_to_all_transposes(#[values(1, 2, 3, 5)] ranks: usize, #[values(false, true)] uneven: bool) {
    with_each(ranks, uneven, |rig, dtype, vector| {
        let (me, size, base) = (rig.rank(), dtype.size(), vector[vector.len() - 1]);
        // Rank `from` sends this many elements to rank `to`.
        let part = |from: usize, to: usize| {
            if uneven {
                base * ((from + 2 * to) % 3) / 2
            } else {
                base
            }
        };
        let data = |from, to| input(from * 10 + to, part(from, to) * size);
        let sends: Vec<_> = (0..ranks).map(|to| part(me, to)).collect();
        let receives: Vec<_> = (0..ranks).map(|from| part(from, me)).collect();
        let mut send: Vec<u8> = (0..ranks).flat_map(|to| data(me, to)).collect();
        let expected: Vec<u8> = (0..ranks).flat_map(|from| data(from, me)).collect();
        let mut recv = vec![0; expected.len()];
        let (counts, recv_counts) = if uneven {
            (Counts::Uneven(&sends), Counts::Uneven(&receives))
        } else {
            (Counts::Even(base), Counts::Even(base))
        };
        let (from, to) = (operand(&mut send), operand(&mut recv));
        rig.run(&[call(Op::AllToAll { recv_counts }, dtype, from, to, counts)])
            .unwrap();
        assert_eq!(recv, expected);
    });
}

#[test]
fn a_rank_that_sends_nothing_to_all_may_receive() {
    on_every_rank(2, |rig| {
        let me = rig.rank();
        let mut send = vec![7_u8; if me == 0 { 0 } else { 3 }];
        let mut recv = vec![0_u8; if me == 0 { 3 } else { 0 }];
        let (counts, recv_counts) = if me == 0 {
            (Counts::Even(0), Counts::Uneven(&[0, 3]))
        } else {
            (Counts::Uneven(&[3, 0]), Counts::Even(0))
        };
        let (from, to) = (operand(&mut send), operand(&mut recv));
        rig.run(&[call(
            Op::AllToAll { recv_counts },
            DType::U8,
            from,
            to,
            counts,
        )])
        .unwrap();
        assert_eq!(recv, vec![7; recv.len()]);
    });
}

#[test]
fn a_group_is_one_call() {
    on_every_rank(3, |rig| {
        let me = rig.rank() as u8;
        let mut sum = [me; 5000];
        let mut all = [0_u8; 3];
        let (mut mine, mut word) = ([me], [me; 4]);
        let sum_ = operand(&mut sum);
        let word_ = operand(&mut word);
        let from = operand(&mut mine);
        let to = operand(&mut all);
        let root = Rank(2);
        rig.run(&[
            call(
                Op::AllReduce(ReduceOp::Sum),
                DType::U8,
                sum_,
                sum_,
                Counts::Even(5000),
            ),
            call(Op::AllGather, DType::U8, from, to, Counts::Even(1)),
            call(
                Op::AllReduce(ReduceOp::Sum),
                DType::U8,
                sum_,
                sum_,
                Counts::Even(0),
            )
            .with_operands(
                collectives_core::addr::Operand::EMPTY,
                collectives_core::addr::Operand::EMPTY,
            ),
            Collective::BARRIER,
            call(
                Op::Broadcast { root },
                DType::U32,
                if rig.rank() == 2 {
                    word_
                } else {
                    collectives_core::addr::Operand::EMPTY
                },
                word_,
                Counts::Even(1),
            ),
        ])
        .unwrap();
        assert_eq!((sum, all, word), ([3; 5000], [0, 1, 2], [2; 4]));
    });
}

#[test]
fn zero_elements_are_a_no_op_that_all_ranks_make() {
    on_every_rank(2, |rig| {
        {
            let empty = collectives_core::addr::Operand::EMPTY;
            for op in [
                Op::AllReduce(ReduceOp::Sum),
                Op::AllGather,
                Op::Broadcast { root: Rank(1) },
            ] {
                rig.run(&[call(op, DType::F32, empty, empty, Counts::Even(0))])
                    .unwrap();
            }
            rig.run(&[call(
                Op::AllGather,
                DType::F32,
                empty,
                empty,
                Counts::Uneven(&[0, 0]),
            )])
            .unwrap();
            rig.run(&[]).unwrap();
        }
        rig.barrier();
    });
}

#[test]
fn a_split_renumbers_by_key_and_works_beside_its_parent() {
    on_every_rank(5, |rig| {
        let me = rig.rank();
        let color = (me < 4).then_some(me as u32 % 2);
        let child = rig.comm.split(color, 10 - me as u32).unwrap();
        rig.barrier();
        let Some(mut child) = child else {
            assert_eq!(me, 4);
            return;
        };
        // The higher rank has the lower key.
        assert_eq!(child.info().rank.index(), usize::from(me < 2));
        assert_eq!(child.info().world_size, 2);
        let mut value = [me as u8 + 1];
        let side = operand(&mut value);
        let sum = call(
            Op::AllReduce(ReduceOp::Sum),
            DType::U8,
            side,
            side,
            Counts::Even(1),
        );
        // SAFETY: The operand lives until the inline stream has run it.
        unsafe { enqueue(&mut *child, &[sum], &rig.stream).unwrap() };
        assert_eq!(value, [if me % 2 == 0 { 4 } else { 6 }]);
        let _ = child.shutdown().unwrap();
    });
}
