use std::net::Ipv4Addr;
use std::rc::Rc;

use tokio::net::TcpListener;
use tokio::task::{LocalSet, spawn_local};

use offleash_core::limits::Limits;

use super::*;
use crate::journal::Journal;
use crate::limits::Budget;

/// Both ends of a connection.
async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (dialled, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
    (dialled.unwrap(), accepted.unwrap().0)
}

/// A client, a server, and what was counted when the tunnel between them has ended.
async fn tunnelled(
    pipes: &Rc<Pipes>,
) -> (
    TcpStream,
    TcpStream,
    tokio::task::JoinHandle<(io::Result<()>, u64, u64)>,
) {
    let (client, mut inner) = pair().await;
    let (mut outer, server) = pair().await;
    let pipes = Rc::clone(pipes);
    let tunnel = spawn_local(async move {
        let counts = Counts::new(&Budget::new(&Limits::default(), Journal::default()));
        let ended = tunnel(&mut inner, &mut outer, &counts, &pipes, None::<fn(&[u8])>).await;
        (ended, counts.sent.bytes(), counts.received.bytes())
    });
    (client, server, tunnel)
}

fn block_on(future: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    LocalSet::new().block_on(&runtime, future);
}

/// Bytes in which a lost, doubled or moved piece shows.
fn bytes(length: usize) -> Vec<u8> {
    let byte = |at: usize| u8::try_from((at * 31 + at / 251) % 253).unwrap();
    (0..length).map(byte).collect()
}

async fn everything(mut from: ReadHalf<'_>) -> Vec<u8> {
    let mut read = Vec::new();
    from.read_to_end(&mut read).await.unwrap();
    read
}

async fn send(mut to: WriteHalf<'_>, bytes: &[u8]) {
    to.write_all(bytes).await.unwrap();
    to.shutdown().await.unwrap();
}

#[test]
fn bytes_arrive_whole_both_ways_whatever_number_of_pipes_there_is() {
    let (out, back) = (bytes(3 << 20), bytes((5 << 20) + 17));
    for most in [0, 1, 2] {
        block_on(async {
            let pipes = Rc::new(Pipes::new(most));
            let (mut client, mut server, tunnel) = tunnelled(&pipes).await;
            let (client_reads, client_writes) = client.split();
            let (server_reads, server_writes) = server.split();
            let (_, (), (), _) = tokio::join!(
                async { assert!(everything(server_reads).await == out, "{most} pipes, out") },
                send(client_writes, &out),
                send(server_writes, &back),
                async { assert!(everything(client_reads).await == back, "{most} pipes, back") },
            );
            let (ended, sent, received) = tunnel.await.unwrap();
            ended.unwrap();
            assert_eq!((sent, received), (out.len() as u64, back.len() as u64), "{most} pipes");
            assert!((most.min(1)..=most).contains(&pipes.idle()), "they are used, and kept");
        });
    }
}

#[test]
fn an_end_one_way_is_told_and_the_other_way_goes_on() {
    block_on(async {
        let pipes = Rc::new(Pipes::new(4));
        let (mut client, mut server, tunnel) = tunnelled(&pipes).await;
        let asked = bytes(1 << 20);
        let (client_reads, client_writes) = client.split();
        let (server_reads, server_writes) = server.split();
        let (read, ()) = tokio::join!(everything(server_reads), send(client_writes, &asked));
        assert!(read == asked);
        let (answer, ()) = tokio::join!(everything(client_reads), send(server_writes, &asked));
        assert!(answer == asked);
        let (ended, sent, received) = tunnel.await.unwrap();
        ended.unwrap();
        assert_eq!((sent, received), (1 << 20, 1 << 20));
    });
}

#[test]
fn little_takes_no_pipe() {
    block_on(async {
        let pipes = Rc::new(Pipes::new(4));
        let (mut client, mut server, tunnel) = tunnelled(&pipes).await;
        let (_, client_writes) = client.split();
        let (server_reads, _) = server.split();
        let ((), read) = tokio::join!(send(client_writes, b"hello"), everything(server_reads));
        assert_eq!(read, b"hello");
        drop(server);
        tunnel.await.unwrap().0.unwrap();
        assert_eq!(pipes.idle(), 0);
    });
}

#[test]
fn what_a_reset_cut_off_is_counted_as_far_as_it_got_and_its_pipe_is_not_used_again() {
    block_on(async {
        let pipes = Rc::new(Pipes::new(1));
        let (mut client, mut server, tunnel) = tunnelled(&pipes).await;
        let sender = spawn_local(async move {
            let block = bytes(1 << 20);
            // It ends when the other side is gone.
            while client.write_all(&block).await.is_ok() {}
        });
        let mut first = vec![0; 2 << 20];
        server.read_exact(&mut first).await.unwrap();
        server.set_zero_linger().unwrap();
        drop(server);
        let (ended, sent, received) = tunnel.await.unwrap();
        sender.await.unwrap();
        assert!(ended.is_err());
        assert!(sent >= 2 << 20, "{sent}");
        assert_eq!(received, 0);
        let mut pipe = pipes.take().expect("the one that was lost may be made again");
        let (_client, server) = pair().await;
        let nothing = pipe.fill(&server, 1).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
    });
}

#[test]
fn whoever_does_not_read_holds_no_more_than_its_own_pipe() {
    block_on(async {
        let pipes = Rc::new(Pipes::new(2));
        let (mut stuck, _server, _tunnel) = tunnelled(&pipes).await;
        let full = async {
            let block = bytes(1 << 20);
            loop {
                stuck.write_all(&block).await.unwrap();
            }
        };
        let others = async {
            for _ in 0..3 {
                let (mut client, mut server, tunnel) = tunnelled(&pipes).await;
                let sent = bytes(2 << 20);
                let (_, client_writes) = client.split();
                let (server_reads, _) = server.split();
                let ((), read) = tokio::join!(send(client_writes, &sent), everything(server_reads));
                assert!(read == sent);
                drop(server);
                tunnel.await.unwrap().0.unwrap();
            }
        };
        tokio::select! {
            () = full => {}
            () = others => {}
        }
    });
}

#[test]
fn without_pipes_there_are_none() {
    let pipes = Pipes::new(3);
    drop(pipes.take().unwrap());
    pipes.forbid();
    assert!(pipes.take().is_none());
}
