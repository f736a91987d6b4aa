//! Send and receive.

use std::thread;
use std::time::Duration;

use collectives_core::addr::Operand;
use collectives_core::collective::{Collective, Counts, Op};
use collectives_core::dtype::DType;
use collectives_core::error::{ErrorKind, Field};
use collectives_core::rank::Rank;

use crate::common::{call, noise, on_every_rank, operand, within};

fn send(to: usize, bytes: &mut [u8]) -> Collective<'static> {
    let op = Op::Send { to: Rank::new(to) };
    call(
        op,
        DType::U8,
        operand(bytes),
        Operand::EMPTY,
        Counts::Even(bytes.len()),
    )
}

fn recv(from: usize, bytes: &mut [u8]) -> Collective<'static> {
    let op = Op::Recv {
        from: Rank::new(from),
    };
    call(
        op,
        DType::U8,
        Operand::EMPTY,
        operand(bytes),
        Counts::Even(bytes.len()),
    )
}

#[test]
fn messages_between_two_ranks_arrive_in_order() {
    on_every_rank(3, |rig| {
        for len in [1_usize, 100, 1 << 20] {
            for round in 0..20 {
                match rig.rank() {
                    0 => rig.run(&[send(2, &mut noise(round, len))]).unwrap(),
                    2 => {
                        let mut bytes = vec![0; len];
                        rig.run(&[recv(0, &mut bytes)]).unwrap();
                        assert_eq!(bytes, noise(round, len));
                    }
                    // A rank between them takes no part.
                    _ => {}
                }
            }
        }
        rig.barrier();
    });
}

#[test]
fn a_group_of_messages_is_a_ring_and_may_hold_collectives_too() {
    on_every_rank(4, |rig| {
        let me = rig.rank();
        let (next, previous) = ((me + 1) % 4, (me + 3) % 4);
        for _ in 0..50 {
            let (mut mine, mut theirs) = ([me as u8; 1000], [9; 1000]);
            let (mut own, mut copy) = ([me as u8 + 1; 5], [0; 5]);
            rig.run(&[
                recv(previous, &mut theirs),
                Collective::BARRIER,
                send(me, &mut own),
                send(next, &mut mine),
                recv(me, &mut copy),
            ])
            .unwrap();
            assert_eq!((theirs, copy), ([previous as u8; 1000], own));
        }
    });
}

#[test]
fn halves_that_differ_fail_alike_and_the_next_message_arrives() {
    for (send_len, recv_len) in [(10, 11), (11, 10)] {
        let kinds = on_every_rank(2, |rig| {
            let mut bytes = [rig.rank() as u8; 16];
            let error = match rig.rank() {
                0 => rig.run(&[send(1, &mut bytes[..send_len])]),
                _ => rig.run(&[recv(0, &mut bytes[..recv_len])]),
            }
            .unwrap_err();
            assert_eq!(bytes, [rig.rank() as u8; 16], "nothing moved");
            match rig.rank() {
                0 => rig.run(&[send(1, &mut bytes)]).unwrap(),
                _ => rig.run(&[recv(0, &mut bytes)]).unwrap(),
            }
            assert_eq!(bytes, [0; 16]);
            error.kind().clone()
        });
        let expected = ErrorKind::Mismatch {
            rank: Rank(1),
            field: Field::Count,
            theirs: recv_len.to_string(),
            ours: send_len.to_string(),
        };
        assert_eq!(kinds, [expected.clone(), expected]);
    }
}

#[test]
fn a_late_half_gets_the_same_timeout() {
    let deadline = Duration::from_millis(50);
    for late in 0..2 {
        let kinds = within(2, deadline, |rig| {
            if rig.rank() == late {
                thread::sleep(deadline * 5);
            }
            let mut bytes = [1; 8];
            let mut half = |rig: &mut crate::common::Rig| match rig.rank() {
                0 => rig.run(&[send(1, &mut bytes)]),
                _ => rig.run(&[recv(0, &mut bytes)]),
            };
            let error = half(rig).unwrap_err();
            rig.comm.set_deadline(Duration::from_secs(20));
            half(rig).unwrap();
            error.kind().clone()
        });
        let expected = ErrorKind::Timeout {
            absent: vec![Rank::new(late)],
            waited: deadline,
        };
        assert_eq!(kinds, [expected.clone(), expected]);
    }
}
