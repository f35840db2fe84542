//! The key-value store that a PyTorch process group meets at: torch's TCPStore, server side, as far as its clients use it.
//!
//! One byte of opcode, then little-endian numbers and length-prefixed strings; no framing. Servers are clients of it. It
//! holds what it is told for as long as it lives and refuses to know what keys mean. Read `mod.rs` for who meets.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

/// What a client says first.
const MAGIC: u32 = 0x3C85_F7CE;
/// No key or value of a group is longer.
const MAX_BYTES: u64 = 1 << 20;

type Entries = HashMap<Vec<u8>, Vec<u8>>;

/// A store that listens until it is dropped.
#[derive(Debug)]
pub(super) struct Store {
    address: SocketAddr,
    entries: Arc<watch::Sender<Entries>>,
    _stop: DropGuard,
}

impl Store {
    /// Listen at a free port of `host`.
    ///
    /// # Errors
    /// The address is not this machine's.
    pub(super) async fn listen(host: IpAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((host, 0)).await?;
        let address = listener.local_addr()?;
        let entries = Arc::new(watch::Sender::new(Entries::new()));
        let stop = CancellationToken::new();
        let (shared, stopped) = (Arc::clone(&entries), stop.clone());
        tokio::spawn(stopped.clone().run_until_cancelled_owned(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (shared, stopped) = (Arc::clone(&shared), stopped.clone());
                tokio::spawn(async move {
                    // A client that leaves, or that speaks something else, is done with.
                    let _ = stopped.run_until_cancelled(serve(stream, &shared)).await;
                });
            }
        }));
        Ok(Self {
            address,
            entries,
            _stop: stop.drop_guard(),
        })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Let `key` hold `value`.
    pub(super) fn set(&self, key: &str, value: Vec<u8>) {
        self.entries
            .send_modify(|all| _ = all.insert(key.into(), value));
    }
}

struct Client {
    from: BufReader<OwnedReadHalf>,
    to: OwnedWriteHalf,
}

impl Client {
    async fn string(&mut self) -> io::Result<Vec<u8>> {
        let len = self.from.read_u64_le().await?;
        if len > MAX_BYTES {
            return Err(io::Error::other("a key or value of more than 1 MiB"));
        }
        let mut bytes = vec![0; len as usize];
        self.from.read_exact(&mut bytes).await?;
        Ok(bytes)
    }

    async fn keys(&mut self) -> io::Result<Vec<Vec<u8>>> {
        let len = self.from.read_u64_le().await?;
        if len > MAX_BYTES {
            return Err(io::Error::other("too many keys"));
        }
        let mut keys = Vec::new();
        for _ in 0..len {
            keys.push(self.string().await?);
        }
        Ok(keys)
    }

    async fn answer(&mut self, value: &[u8]) -> io::Result<()> {
        self.to.write_u64_le(value.len() as u64).await?;
        self.to.write_all(value).await
    }
}

async fn serve(stream: TcpStream, entries: &watch::Sender<Entries>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (from, to) = stream.into_split();
    let mut client = Client {
        from: BufReader::new(from),
        to,
    };
    let held = |key: &[u8]| entries.borrow().get(key).cloned().unwrap_or_default();
    loop {
        match client.from.read_u8().await? {
            0 if client.from.read_u32_le().await? == MAGIC => {}
            // SET
            1 => {
                let (key, value) = (client.string().await?, client.string().await?);
                entries.send_modify(|all| _ = all.insert(key, value));
            }
            // GET: clients wait for a key before they ask.
            3 => {
                let key = client.string().await?;
                client.answer(&held(&key)).await?;
            }
            // ADD: numbers are kept as text.
            4 => {
                let key = client.string().await?;
                let by = client.from.read_i64_le().await?;
                let mut sum = by;
                entries.send_modify(|all| {
                    let value = all.entry(key).or_default();
                    let old = std::str::from_utf8(value)
                        .ok()
                        .and_then(|text| text.parse::<i64>().ok());
                    sum = old.unwrap_or(0).wrapping_add(by);
                    *value = sum.to_string().into_bytes();
                });
                client.to.write_i64_le(sum).await?;
            }
            // CHECK
            5 => {
                let keys = client.keys().await?;
                let all = keys.iter().all(|key| entries.borrow().contains_key(key));
                client.to.write_u8(u8::from(!all)).await?;
            }
            // WAIT, which the client may give up (CANCEL_WAIT).
            6 => {
                let keys = client.keys().await?;
                let mut changes = entries.subscribe();
                let there = changes.wait_for(|all| keys.iter().all(|key| all.contains_key(key)));
                let given_up = tokio::select! {
                    _ = there => false,
                    byte = client.from.read_u8() => byte? == 12,
                };
                client.to.write_u8(u8::from(given_up)).await?;
            }
            // GETNUMKEYS
            7 => {
                let len = entries.borrow().len() as i64;
                client.to.write_i64_le(len).await?;
            }
            // DELETE
            8 => {
                let key = client.string().await?;
                let mut was_there = false;
                entries.send_modify(|all| was_there = all.remove(&key).is_some());
                client.to.write_i64_le(i64::from(was_there)).await?;
            }
            12 => client.to.write_u8(1).await?,
            // PING
            13 => {
                let nonce = client.from.read_u32_le().await?;
                client.to.write_u32_le(nonce).await?;
            }
            op => return Err(io::Error::other(format!("opcode {op}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use std::time::Duration;

    async fn store() -> (Store, TcpStream) {
        let store = Store::listen(Ipv4Addr::LOCALHOST.into()).await.unwrap();
        let client = TcpStream::connect(store.address()).await.unwrap();
        (store, client)
    }

    fn string(text: &str) -> Vec<u8> {
        [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
    }

    async fn expect(client: &mut TcpStream, bytes: &[u8]) {
        let mut got = vec![0; bytes.len()];
        let read = client.read_exact(&mut got);
        tokio::time::timeout(Duration::from_secs(5), read)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(got, bytes);
    }

    #[tokio::test]
    async fn the_first_bytes_that_torch_sends_are_answered_as_torch_answers_them() {
        let (_store, mut client) = store().await;
        // Captured: validate, then ping.
        client
            .write_all(&[0x00, 0xce, 0xf7, 0x85, 0x3c])
            .await
            .unwrap();
        client
            .write_all(&[0x0d, 0x57, 0x20, 0x00, 0x00])
            .await
            .unwrap();
        expect(&mut client, &[0x57, 0x20, 0x00, 0x00]).await;
        let one = 1i64.to_le_bytes();
        for sum in [1i64, 2] {
            client
                .write_all(&[&[4], &string("init/")[..], &one].concat())
                .await
                .unwrap();
            expect(&mut client, &sum.to_le_bytes()).await;
        }
        client
            .write_all(&[&[3], &string("init/")[..]].concat())
            .await
            .unwrap();
        expect(&mut client, &string("2")).await;
    }

    #[tokio::test]
    async fn a_client_waits_until_a_key_is_there_or_gives_up() {
        let (store, mut client) = store().await;
        let wait = [&[6], &1u64.to_le_bytes()[..], &string("/g/0")].concat();
        client.write_all(&wait).await.unwrap();
        tokio::time::sleep(Duration::from_millis(30)).await;
        client.write_all(&[12]).await.unwrap();
        expect(&mut client, &[1]).await;
        client.write_all(&wait).await.unwrap();
        store.set("/g/0", vec![7; 128]);
        expect(&mut client, &[0]).await;
        client
            .write_all(&[&[3], &string("/g/0")[..]].concat())
            .await
            .unwrap();
        expect(
            &mut client,
            &[&128u64.to_le_bytes()[..], &[7; 128]].concat(),
        )
        .await;
        let check = [
            &[5],
            &2u64.to_le_bytes()[..],
            &string("/g/0"),
            &string("/g/1"),
        ]
        .concat();
        client.write_all(&check).await.unwrap();
        expect(&mut client, &[1]).await;
    }

    #[tokio::test]
    async fn a_stranger_is_hung_up_on_and_others_are_not() {
        let (store, mut client) = store().await;
        client
            .write_all(b"\xffGET / HTTP/1.1\r\n\r\n")
            .await
            .unwrap();
        assert_eq!(client.read(&mut [0; 8]).await.unwrap_or(0), 0);
        let mut client = TcpStream::connect(store.address()).await.unwrap();
        client.write_all(&[1u8]).await.unwrap();
        client.write_all(&u64::MAX.to_le_bytes()).await.unwrap();
        assert_eq!(
            client.read(&mut [0; 8]).await.unwrap_or(0),
            0,
            "a length that nobody has"
        );
        let mut client = TcpStream::connect(store.address()).await.unwrap();
        client.write_all(&[13, 1, 2, 3, 4]).await.unwrap();
        expect(&mut client, &[1, 2, 3, 4]).await;
    }
}
