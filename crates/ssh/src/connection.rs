//! The connection of one client: who it says it is, and its channels (RFC 4252, RFC 4254).

use std::collections::HashMap;
use std::sync::Arc;

use offleash_api::client::SandboxServices;
use offleash_core::exec::OutputStream;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::AbortHandle;

use crate::channel::{self, ChannelControl, ChannelEvent, ChannelInput, ChannelOutput, ChannelStreams, MAX_DATA};
use crate::error::SshError;
use crate::host_key::HostKey;
use crate::kex::KexSession;
use crate::packet::{PacketReader, PacketWriter};
use crate::requests::{SessionRequest, SessionSetup};
use crate::wire::{WireReader, WireWriter, message};

const NAME: &str = concat!("SSH-2.0-offleash_", env!("CARGO_PKG_VERSION"));

/// Channels of one client at a time.
const MAX_CHANNELS: usize = 256;
/// What a client may send of a channel before it was taken in, in bytes.
const WINDOW: u32 = 2 << 20;
/// What a channel has to have been given back before the client is told.
const WINDOW_STEP: u32 = WINDOW / 4;
/// What waits for a command of what it is to be told, such as sizes of its terminal.
const MAX_CONTROLS: usize = 64;
/// What channels have to say and was not said yet.
const EVENTS: usize = 64;

/// Why a channel is not opened (RFC 4254, section 5.1).
const PROHIBITED: u32 = 1;
const CONNECT_FAILED: u32 = 2;
const UNKNOWN_TYPE: u32 = 3;
const SHORTAGE: u32 = 4;
/// The second stream of a channel: standard error.
const EXTENDED_STDERR: u32 = 1;

/// Names of the sandbox itself, whose ports alone are forwarded to.
const OWN_NAMES: [&str; 4] = ["localhost", "127.0.0.1", "::1", "0.0.0.0"];

/// Serves a client that was let in before, until it goes.
///
/// # Errors
/// When it does not keep to the protocol, has no algorithm in common with us, or the streams fail.
pub async fn serve<R, W>(input: R, output: W, key: &HostKey, services: SandboxServices) -> Result<(), SshError>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let (mut reader, mut writer) = (PacketReader::new(input), PacketWriter::new(output));
    writer.identify(NAME).await?;
    let client_name = reader.identification().await?;
    let mut kex = KexSession::new(client_name, NAME);
    kex.exchange(None, key, &mut reader, &mut writer).await?;
    let Some(user) = admitted(&mut reader, &mut writer).await? else {
        return Ok(());
    };
    let (send_events, events) = mpsc::channel(EVENTS);
    let connection = Connection {
        reader,
        writer,
        kex,
        key,
        services: services.as_user(&user),
        user,
        channels: HashMap::new(),
        next_id: 0,
        send_events,
    };
    connection.run(events).await
}

/// As whom the client comes; `None` if it goes before it says so.
async fn admitted<R, W>(reader: &mut PacketReader<R>, writer: &mut PacketWriter<W>) -> Result<Option<String>, SshError>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    while let Some(packet) = reader.next().await? {
        let mut fields = WireReader::new(&packet);
        match fields.byte()? {
            message::SERVICE_REQUEST => {
                let service = fields.text()?;
                if service != "ssh-userauth" {
                    return Err(SshError::Protocol("it asks for a service that there is not"));
                }
                writer
                    .send(&WireWriter::message(message::SERVICE_ACCEPT).string(service).0)
                    .await?;
            }
            message::USERAUTH_REQUEST => {
                let (user, service) = (fields.text()?.to_owned(), fields.text()?);
                if service != "ssh-connection" {
                    return Err(SshError::Protocol("it asks for a service that there is not"));
                }
                // Whoever has these streams is whose key the sandbox is asked with: nothing is to be proved.
                writer.send(&[message::USERAUTH_SUCCESS]).await?;
                return Ok(Some(user));
            }
            message::DISCONNECT => return Ok(None),
            _ => {}
        }
    }
    Ok(None)
}

struct Connection<'a, R, W> {
    reader: PacketReader<R>,
    writer: PacketWriter<W>,
    kex: KexSession,
    key: &'a HostKey,
    services: SandboxServices,
    user: String,
    channels: HashMap<u32, OpenChannel>,
    next_id: u32,
    send_events: mpsc::Sender<(u32, ChannelEvent)>,
}

/// A channel as the connection knows it.
struct OpenChannel {
    /// What the client calls it.
    theirs: u32,
    output: ChannelOutput,
    /// What the client may still send.
    granted: u32,
    /// What was taken in and not told yet.
    taken_in: u32,
    setup: SessionSetup,
    begun: Option<BegunChannel>,
    said_close: bool,
}

/// The task of a channel, which ends with this.
struct BegunChannel {
    input: mpsc::UnboundedSender<ChannelInput>,
    control: mpsc::Sender<ChannelControl>,
    task: AbortHandle,
}

impl Drop for BegunChannel {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<R, W> Connection<'_, R, W>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    async fn run(mut self, mut events: mpsc::Receiver<(u32, ChannelEvent)>) -> Result<(), SshError> {
        loop {
            tokio::select! {
                packet = self.reader.next() => match packet? {
                    None => return Ok(()),
                    Some(packet) if packet.first() == Some(&message::DISCONNECT) => return Ok(()),
                    Some(packet) => self.take(packet).await?,
                },
                // There is always one that can say something: ours.
                Some((id, event)) = events.recv() => self.tell(id, event).await?,
            }
        }
    }

    async fn take(&mut self, packet: Vec<u8>) -> Result<(), SshError> {
        let mut fields = WireReader::new(&packet);
        match fields.byte()? {
            message::KEXINIT => {
                self.kex
                    .exchange(Some(packet), self.key, &mut self.reader, &mut self.writer)
                    .await
            }
            message::GLOBAL_REQUEST => {
                let (_, wants_answer) = (fields.string()?, fields.boolean()?);
                // Whether we are still there is asked by one that nobody has.
                match wants_answer {
                    true => self.writer.send(&[message::REQUEST_FAILURE]).await,
                    false => Ok(()),
                }
            }
            message::CHANNEL_OPEN => self.open(fields).await,
            message::CHANNEL_WINDOW_ADJUST => {
                let (id, more) = (fields.number()?, fields.number()?);
                let Some(channel) = self.channels.get(&id) else {
                    return Ok(());
                };
                grant(&channel.output.window, more)
            }
            message::CHANNEL_DATA => {
                let (id, data) = (fields.number()?, fields.string()?);
                self.input(id, data)
            }
            message::CHANNEL_EXTENDED_DATA => Err(SshError::Protocol("it writes to a stream that it reads")),
            message::CHANNEL_EOF => {
                let id = fields.number()?;
                if let Some(begun) = self.channels.get(&id).and_then(|channel| channel.begun.as_ref()) {
                    // What has ended takes none.
                    let _ended = begun.input.send(ChannelInput::Eof);
                }
                Ok(())
            }
            message::CHANNEL_CLOSE => {
                let id = fields.number()?;
                match self.channels.remove(&id) {
                    Some(channel) if !channel.said_close => self.close(channel.theirs).await,
                    _ => Ok(()),
                }
            }
            message::CHANNEL_REQUEST => self.request(fields).await,
            // What channels we do not open are answered with, and what says nothing.
            message::CHANNEL_SUCCESS
            | message::CHANNEL_FAILURE
            | message::IGNORE
            | message::DEBUG
            | message::UNIMPLEMENTED => Ok(()),
            _ => {
                self.writer
                    .send(&WireWriter::message(message::UNIMPLEMENTED).number(0).0)
                    .await
            }
        }
    }

    async fn open(&mut self, mut fields: WireReader<'_>) -> Result<(), SshError> {
        let (kind, theirs) = (fields.text()?, fields.number()?);
        let (window, most) = (fields.number()?, fields.number()?);
        if self.channels.len() >= MAX_CHANNELS {
            return self.refuse(theirs, SHORTAGE, "too many channels").await;
        }
        let most = usize::try_from(most).unwrap_or(MAX_DATA).clamp(1, MAX_DATA);
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        let permits = Arc::new(Semaphore::new(0));
        grant(&permits, window)?;
        let channel = OpenChannel {
            theirs,
            output: ChannelOutput {
                id,
                events: self.send_events.clone(),
                window: permits,
                most,
            },
            granted: WINDOW,
            taken_in: 0,
            setup: SessionSetup::default(),
            begun: None,
            said_close: false,
        };
        match kind {
            "session" => {
                self.channels.insert(id, channel);
                self.confirm(id).await
            }
            "direct-tcpip" => {
                let (host, port) = (fields.text()?, fields.number()?);
                let Some(port) = u16::try_from(port).ok().filter(|port| *port != 0) else {
                    return self.refuse(theirs, CONNECT_FAILED, "that is no port").await;
                };
                if !OWN_NAMES.contains(&host) {
                    let why = "ports of the sandbox itself are forwarded, as `localhost`";
                    return self.refuse(theirs, PROHIBITED, why).await;
                }
                self.channels.insert(id, channel);
                let services = self.services.clone();
                self.begin(id, move |streams| channel::port(services, port, streams));
                Ok(())
            }
            _ => self.refuse(theirs, UNKNOWN_TYPE, "there are no such channels").await,
        }
    }

    /// Starts the task of a channel.
    fn begin<T>(&mut self, id: u32, make: impl FnOnce(ChannelStreams) -> T)
    where
        T: Future<Output = ()> + Send + 'static,
    {
        let Some(channel) = self.channels.get_mut(&id) else {
            return;
        };
        let (send_input, input) = mpsc::unbounded_channel();
        let (send_control, control) = mpsc::channel(MAX_CONTROLS);
        let streams = ChannelStreams {
            input,
            control,
            output: channel.output.clone(),
        };
        let task = tokio::spawn(make(streams)).abort_handle();
        channel.begun = Some(BegunChannel {
            input: send_input,
            control: send_control,
            task,
        });
    }

    fn input(&mut self, id: u32, data: &[u8]) -> Result<(), SshError> {
        let Some(channel) = self.channels.get_mut(&id) else {
            return Ok(());
        };
        let length = u32::try_from(data.len()).unwrap_or(u32::MAX);
        channel.granted = channel
            .granted
            .checked_sub(length)
            .ok_or(SshError::Protocol("it sends more than it may"))?;
        if let Some(begun) = &channel.begun {
            // What has ended takes none.
            let _ended = begun.input.send(ChannelInput::Data(data.to_vec()));
        }
        Ok(())
    }

    async fn request(&mut self, mut fields: WireReader<'_>) -> Result<(), SshError> {
        let (id, kind, wants_answer) = (fields.number()?, fields.text()?, fields.boolean()?);
        let request = SessionRequest::read(kind, fields)?;
        let Some(theirs) = self.channels.get(&id).map(|channel| channel.theirs) else {
            return Ok(());
        };
        let is_done = self.carry_out(id, request);
        if !wants_answer {
            return Ok(());
        }
        let answer = if is_done {
            message::CHANNEL_SUCCESS
        } else {
            message::CHANNEL_FAILURE
        };
        self.writer.send(&WireWriter::message(answer).number(theirs).0).await
    }

    /// Whether a request is carried out.
    fn carry_out(&mut self, id: u32, request: SessionRequest) -> bool {
        let Some(channel) = self.channels.get_mut(&id) else {
            return false;
        };
        match (request, &channel.begun) {
            (SessionRequest::Terminal { kind, size }, None) => {
                channel.setup.tty = Some(size);
                channel.setup.set("TERM".to_owned(), kind)
            }
            (SessionRequest::Variable(name, value), None) => channel.setup.set(name, value),
            (SessionRequest::Shell, None) => self.run_command(id, None),
            (SessionRequest::Command(command), None) => self.run_command(id, Some(command)),
            (SessionRequest::Subsystem(name), None) if name == "sftp" => {
                let services = self.services.clone();
                self.begin(id, move |streams| channel::files(services, streams));
                true
            }
            (SessionRequest::Resize(size), Some(begun)) => begun.control.try_send(ChannelControl::Resize(size)).is_ok(),
            (SessionRequest::Signal(signal), Some(begun)) => {
                begun.control.try_send(ChannelControl::Signal(signal)).is_ok()
            }
            _ => false,
        }
    }

    fn run_command(&mut self, id: u32, command: Option<String>) -> bool {
        let Some(channel) = self.channels.get_mut(&id) else {
            return false;
        };
        let setup = std::mem::take(&mut channel.setup);
        let (services, user) = (self.services.clone(), self.user.clone());
        self.begin(id, move |streams| channel::run(services, user, command, setup, streams));
        true
    }

    async fn tell(&mut self, id: u32, event: ChannelEvent) -> Result<(), SshError> {
        let Some(channel) = self.channels.get_mut(&id) else {
            return Ok(());
        };
        let theirs = channel.theirs;
        match event {
            ChannelEvent::Opened => self.confirm(id).await,
            ChannelEvent::NotOpened(why) => {
                self.channels.remove(&id);
                self.refuse(theirs, CONNECT_FAILED, &why).await
            }
            ChannelEvent::Output(OutputStream::Stdout, bytes) => {
                let data = WireWriter::message(message::CHANNEL_DATA).number(theirs).string(bytes);
                self.writer.send(&data.0).await
            }
            ChannelEvent::Output(OutputStream::Stderr, bytes) => {
                let data = WireWriter::message(message::CHANNEL_EXTENDED_DATA).number(theirs);
                self.writer.send(&data.number(EXTENDED_STDERR).string(bytes).0).await
            }
            ChannelEvent::TakenIn(bytes) => {
                channel.taken_in += u32::try_from(bytes).unwrap_or(0);
                if channel.taken_in < WINDOW_STEP {
                    return Ok(());
                }
                let more = std::mem::take(&mut channel.taken_in);
                channel.granted += more;
                let adjust = WireWriter::message(message::CHANNEL_WINDOW_ADJUST)
                    .number(theirs)
                    .number(more);
                self.writer.send(&adjust.0).await
            }
            ChannelEvent::Exit(code) => {
                let exit = WireWriter::message(message::CHANNEL_REQUEST)
                    .number(theirs)
                    .string("exit-status");
                self.writer.send(&exit.boolean(false).number(u32::from(code)).0).await
            }
            ChannelEvent::Eof => {
                self.writer
                    .send(&WireWriter::message(message::CHANNEL_EOF).number(theirs).0)
                    .await
            }
            ChannelEvent::Close => {
                channel.said_close = true;
                self.close(theirs).await
            }
        }
    }

    async fn confirm(&mut self, id: u32) -> Result<(), SshError> {
        let Some(channel) = self.channels.get(&id) else {
            return Ok(());
        };
        let confirmed = WireWriter::message(message::CHANNEL_OPEN_CONFIRMATION)
            .number(channel.theirs)
            .number(id)
            .number(WINDOW)
            .number(u32::try_from(MAX_DATA).unwrap_or(u32::MAX));
        self.writer.send(&confirmed.0).await
    }

    async fn refuse(&mut self, theirs: u32, code: u32, why: &str) -> Result<(), SshError> {
        let refused = WireWriter::message(message::CHANNEL_OPEN_FAILURE)
            .number(theirs)
            .number(code);
        self.writer.send(&refused.string(why).string("en").0).await
    }

    async fn close(&mut self, theirs: u32) -> Result<(), SshError> {
        self.writer
            .send(&WireWriter::message(message::CHANNEL_CLOSE).number(theirs).0)
            .await
    }
}

/// Has a channel say so much more.
fn grant(window: &Semaphore, more: u32) -> Result<(), SshError> {
    let more = usize::try_from(more).unwrap_or(usize::MAX);
    let most = usize::try_from(u32::MAX).unwrap_or(usize::MAX);
    if window.available_permits().saturating_add(more) > most {
        return Err(SshError::Protocol("a window is larger than any may be"));
    }
    window.add_permits(more);
    Ok(())
}
