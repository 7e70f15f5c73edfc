//! Servers of screens that do as they should, and others.

use proptest::prelude::*;
use tokio::io::DuplexStream;

use super::*;

fn run<T>(work: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_time().start_paused(true).build().unwrap().block_on(work)
}

/// What a server says at first, of a screen of that size.
fn greeting(width: u16, height: u16) -> Vec<u8> {
    let mut said = VERSION.to_vec();
    said.extend([2, 2, SECURITY_NONE]);
    said.extend(0_u32.to_be_bytes());
    said.extend([width.to_be_bytes(), height.to_be_bytes()].concat());
    said.extend(PIXEL_FORMAT);
    said.extend(4_u32.to_be_bytes());
    said.extend(b"name");
    said
}

fn rectangle(place: [u16; 4], encoding: i32, pixels: &[u8]) -> Vec<u8> {
    let mut said: Vec<u8> = place.iter().flat_map(|side| side.to_be_bytes()).collect();
    said.extend(encoding.to_be_bytes());
    said.extend(pixels);
    said
}

fn update(rectangles: &[Vec<u8>]) -> Vec<u8> {
    let mut said = vec![0, 0];
    said.extend(u16::try_from(rectangles.len()).unwrap().to_be_bytes());
    said.extend(rectangles.concat());
    said
}

/// An observer of a server that says `said`, whatever it is asked, and then stays.
async fn looking(said: Vec<u8>) -> (Result<ScreenObserver<DuplexStream>, DesktopError>, DuplexStream) {
    let (ours, mut theirs) = tokio::io::duplex(1 << 20);
    theirs.write_all(&said).await.unwrap();
    (ScreenObserver::open(ours).await, theirs)
}

#[test]
fn a_screen_is_seen_as_it_changes() {
    run(async {
        let said = [
            greeting(3, 2),
            // A bell, a clipboard and colours, of which nothing is wanted.
            vec![
                2, 3, 0, 0, 0, 0, 0, 0, 2, b'h', b'i', 1, 0, 0, 0, 0, 1, 9, 9, 9, 9, 9, 9,
            ],
            update(&[rectangle([0, 0, 3, 2], ENCODING_RAW, &[0; 24])]),
        ];
        let (observer, mut server) = looking(said.concat()).await;
        let mut observer = observer.unwrap();
        assert!(observer.picture().is_none());
        observer.changed().await.unwrap();
        assert_eq!(observer.picture().unwrap().at(1, 1), [0; 3]);
        let one = update(&[rectangle([1, 1, 1, 1], ENCODING_RAW, &[30, 20, 10, 0])]);
        server.write_all(&[update(&[]), one].concat()).await.unwrap();
        observer.changed().await.unwrap();
        let picture = observer.picture().unwrap();
        assert_eq!((picture.at(1, 1), picture.at(0, 0)), ([10, 20, 30], [0; 3]));
        // What was asked: to look without touching, together with others.
        let mut asked = vec![0; VERSION.len() + 2 + 20 + 12 + 10];
        server.read_exact(&mut asked).await.unwrap();
        assert_eq!(asked[VERSION.len()..VERSION.len() + 2], [SECURITY_NONE, SHARED]);
        assert_eq!(asked[VERSION.len() + 34..], [3, 0, 0, 0, 0, 0, 0, 3, 0, 2]);
    });
}

#[test]
fn a_screen_may_change_its_size_within_bounds() {
    run(async {
        let said = [
            greeting(3, 2),
            update(&[rectangle([0, 0, 1, 1], ENCODING_SIZE, &[])]),
            update(&[rectangle([0, 0, 1, 1], ENCODING_RAW, &[3, 2, 1, 0])]),
            update(&[rectangle([0, 0, 65535, 65535], ENCODING_SIZE, &[])]),
        ];
        let (observer, _server) = looking(said.concat()).await;
        let mut observer = observer.unwrap();
        observer.changed().await.unwrap();
        assert_eq!(observer.picture().unwrap(), Picture::new(1, 1, vec![1, 2, 3]).unwrap());
        assert!(matches!(observer.changed().await, Err(DesktopError::Malformed { .. })));
    });
}

#[test]
fn who_lies_is_not_believed_and_who_stops_is_not_waited_for() {
    run(async {
        let is_refused =
            |said: Vec<u8>| async move { matches!(looking(said).await.0, Err(DesktopError::Malformed { .. })) };
        assert!(is_refused(b"HTTP/1.1 200 OK\r\n".to_vec()).await);
        assert!(is_refused(greeting(0, 2)).await && is_refused(greeting(65535, 65535)).await);
        assert!(is_refused([VERSION.to_vec(), vec![0]].concat()).await);
        let mut named = greeting(3, 2);
        let end = named.len() - 8;
        named[end..end + 4].fill(255);
        assert!(is_refused(named).await);
        let locked = [VERSION.to_vec(), vec![1, 2]].concat();
        assert!(matches!(looking(locked).await.0, Err(DesktopError::Locked)));
        assert!(matches!(looking(b"RFB".to_vec()).await.0, Err(DesktopError::Timeout)));
        for said in [
            update(&[rectangle([1, 0, 3, 2], ENCODING_RAW, &[])]),
            update(&[rectangle([0, 65535, 1, 1], ENCODING_RAW, &[])]),
            update(&[rectangle([0, 0, 1, 1], 7, &[])]),
            update(&[rectangle([1, 0, 1, 1], ENCODING_SIZE, &[])]),
            // What costs much more here than there.
            update(&[
                rectangle([0, 0, 3, 2], ENCODING_SIZE, &[]),
                rectangle([0, 0, 3, 2], ENCODING_SIZE, &[]),
            ]),
            update(&[rectangle([0, 0, 0, 2], ENCODING_RAW, &[])]),
            update(&[rectangle([0, 0, 3, 0], ENCODING_RAW, &[])]),
            vec![9],
            vec![3, 0, 0, 0, 255, 255, 255, 255],
        ] {
            let (observer, _server) = looking([greeting(3, 2), said.clone()].concat()).await;
            let mut observer = observer.unwrap();
            assert!(
                matches!(observer.changed().await, Err(DesktopError::Malformed { .. })),
                "{said:?}"
            );
        }
        let begun = [greeting(3, 2), vec![0, 0]].concat();
        let (observer, server) = looking(begun).await;
        let mut observer = observer.unwrap();
        assert!(matches!(observer.changed().await, Err(DesktopError::Timeout)));
        drop(server);
        assert!(matches!(observer.changed().await, Err(DesktopError::Closed(_))));
    });
}

#[test]
fn what_shows_nothing_comes_a_thousand_times_a_second_and_an_update_has_an_end() {
    run(async {
        let nothing = [vec![2; 500], update(&[]).repeat(500)].concat();
        let picture = update(&[rectangle([0, 0, 3, 2], ENCODING_RAW, &[0; 24])]);
        let (observer, _server) = looking([greeting(3, 2), nothing, picture].concat()).await;
        let start = tokio::time::Instant::now();
        observer.unwrap().changed().await.unwrap();
        assert!(start.elapsed() >= 1000 * PAUSE, "{:?}", start.elapsed());

        let all = rectangle([0, 0, 500, 500], ENCODING_RAW, &vec![0; 500 * 500 * BYTES]);
        let (ours, mut theirs) = tokio::io::duplex(1 << 20);
        let many = update(&vec![all; 2 * MAX_PIXELS / (500 * 500) + 1]);
        let told = tokio::spawn(async move {
            theirs
                .write_all(&[greeting(500, 500), many].concat())
                .await
                .map(|()| theirs)
        });
        let mut observer = ScreenObserver::open(ours).await.unwrap();
        assert!(matches!(observer.changed().await, Err(DesktopError::Malformed { .. })));
        drop(observer);
        told.abort();
    });
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(said in proptest::collection::vec(any::<u8>(), 0..600)) {
        run(async {
            let (observer, server) = looking([greeting(3, 2), said].concat()).await;
            drop(server);
            let mut observer = observer.unwrap();
            while observer.changed().await.is_ok() {}
        });
    }
}
