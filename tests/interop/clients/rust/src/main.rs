//! RocketMQ's gRPC client for Rust, driven by lines of JSON: `driver ADDRESS`, where the address is a proxy's.
//!
//! interop/client.py has the lines. The client has one kind of consumer, a simple one, which consumes whatever `how` is.

use std::collections::HashMap;
use std::env;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::engine::general_purpose::STANDARD;
use base64::Engine;
use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::model::common::{FilterExpression, FilterType, SendReceipt};
use rocketmq::model::message::{Message, MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};
use serde_json::{json, Value};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::{oneshot, Mutex};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const TIMEOUT: Duration = Duration::from_secs(30);
const INVISIBLE: Duration = Duration::from_secs(60);
/// The shortest that the proxy takes: a message that fails is not acknowledged, and is received again after it.
const AGAIN_AFTER: Duration = Duration::from_secs(10);

/// Its producers by topic, and what ends its consumers, by name.
struct Driver {
    address: String,
    producers: Mutex<HashMap<String, Arc<Producer>>>,
    ends: Mutex<HashMap<String, oneshot::Sender<()>>>,
}

#[tokio::main]
async fn main() -> Outcome<()> {
    if let Some(authority) = env::var_os("INTEROP_CA") {
        // The client trusts the system's authorities, in whose place this file is.
        env::set_var("SSL_CERT_FILE", authority);
    }
    let driver = Arc::new(Driver {
        address: env::args().nth(1).ok_or("the address is missing")?,
        producers: Mutex::default(),
        ends: Mutex::default(),
    });
    say(&json!({"event": "ready"}));
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let (driver, request): (_, Value) = (driver.clone(), serde_json::from_str(&line)?);
        tokio::spawn(async move {
            let id = &request["id"];
            say(&match driver.carry_out(&request).await {
                Ok(answer) => json!({"id": id, "ok": answer}),
                Err(error) => json!({"id": id, "error": error.to_string()}),
            });
        });
    }
    std::process::exit(0);
}

/// Write one line.
fn say(line: &Value) {
    println!("{line}");
}

fn text<'a>(fields: &'a Value, name: &str) -> &'a str {
    fields[name].as_str().unwrap_or("")
}

impl Driver {
    async fn carry_out(&self, request: &Value) -> Outcome<Value> {
        match text(request, "do") {
            "produce" => self.produce(request).await,
            "consume" => self.consume(request).await,
            "stop" => {
                self.ends.lock().await.remove(text(request, "consumer"));
                Ok(json!(true))
            }
            unknown => Err(format!("unknown: {unknown}").into()),
        }
    }

    fn options(&self) -> ClientOption {
        let mut options = ClientOption::default();
        options.set_access_url(&self.address);
        options.set_enable_tls(env::var_os("INTEROP_CA").is_some());
        // Not that of long polling, which the client takes for the deadline too: the proxy needs one beyond its own 20 s.
        options.set_timeout(TIMEOUT);
        if let (Ok(user), Ok(secret)) = (env::var("INTEROP_USER"), env::var("INTEROP_SECRET")) {
            options.set_access_key(user);
            options.set_secret_key(secret);
        }
        options
    }

    /// The producer of a topic, which it names to the proxy when it starts.
    async fn producer(&self, topic: &str) -> Outcome<Arc<Producer>> {
        let mut producers = self.producers.lock().await;
        if let Some(found) = producers.get(topic) {
            return Ok(found.clone());
        }
        let mut options = ProducerOption::default();
        options.set_topics(vec![topic]);
        let commits = Box::new(|_, _| TransactionResolution::COMMIT);
        let mut made = Producer::new_transaction_producer(options, self.options(), commits)?;
        made.start().await?;
        let made = Arc::new(made);
        producers.insert(topic.to_string(), made.clone());
        Ok(made)
    }

    async fn produce(&self, request: &Value) -> Outcome<Value> {
        let producer = self.producer(text(request, "topic")).await?;
        let fields = request["messages"].as_array().ok_or("no messages")?;
        let messages: Vec<_> = fields
            .iter()
            .map(|each| message(request, each))
            .collect::<Outcome<_>>()?;
        let mut receipts = Vec::new();
        match text(request, "how") {
            "sync" | "orderly" => {
                for each in messages {
                    receipts.push(producer.send(each).await?);
                }
            }
            "async" => {
                let send = |each| {
                    let producer = producer.clone();
                    tokio::spawn(async move { producer.send(each).await })
                };
                let sending: Vec<_> = messages.into_iter().map(send).collect();
                for each in sending {
                    receipts.push(each.await??);
                }
            }
            "batch" => receipts = producer.batch_send(messages).await?,
            "transaction" => {
                for (each, fields) in messages.into_iter().zip(fields) {
                    let transaction = producer.send_transaction_message(each).await?;
                    match text(&fields["properties"], "decision") {
                        "commit" => transaction.commit().await?,
                        "rollback" => transaction.rollback().await?,
                        // Left for the check.
                        _ => {}
                    }
                }
            }
            unknown => return Err(format!("unknown: {unknown}").into()),
        }
        Ok(receipts.iter().map(result).collect())
    }

    async fn consume(&self, request: &Value) -> Outcome<Value> {
        let (name, topic) = (text(request, "consumer"), text(request, "topic"));
        let wanted = match (request["sql"].as_str(), request["tags"].as_str()) {
            (Some(sql), _) => FilterExpression::new(FilterType::Sql, sql),
            (_, tags) => FilterExpression::new(FilterType::Tag, tags.unwrap_or("*")),
        };
        let mut options = SimpleConsumerOption::default();
        options.set_topics(vec![topic]);
        options.set_consumer_group(text(request, "group"));
        let mut consumer = SimpleConsumer::new(options, self.options())?;
        consumer.start().await?;
        let (end, ended) = oneshot::channel();
        self.ends.lock().await.insert(name.to_string(), end);
        let fails = request["fail"].as_u64().unwrap_or(0);
        tokio::spawn(receive(
            consumer,
            name.to_string(),
            topic.to_string(),
            wanted,
            fails,
            ended,
        ));
        Ok(json!(true))
    }
}

/// Handle what a consumer receives until it is ended; the first deliveries of each message fail, as many as `fails`.
async fn receive(
    consumer: SimpleConsumer,
    name: String,
    topic: String,
    wanted: FilterExpression,
    fails: u64,
    mut ended: oneshot::Receiver<()>,
) {
    let invisible = if fails > 0 { AGAIN_AFTER } else { INVISIBLE };
    let mut seen: HashMap<Vec<u8>, u64> = HashMap::new();
    loop {
        let received = tokio::select! {
            _ = &mut ended => break,
            received = consumer.receive_with(&topic, &wanted, 16, invisible) => received,
        };
        match received {
            Ok(messages) => {
                for each in messages {
                    say(
                        &json!({"event": "received", "consumer": name, "message": described(&each)}),
                    );
                    let times = seen.entry(each.body().to_vec()).or_default();
                    *times += 1;
                    if *times > fails {
                        if let Err(error) = consumer.ack(&each).await {
                            eprintln!("{error}");
                        }
                    }
                }
            }
            Err(error) => {
                eprintln!("{error}");
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        }
    }
    if let Err(error) = consumer.shutdown().await {
        eprintln!("{error}");
    }
}

fn message(request: &Value, fields: &Value) -> Outcome<impl Message> {
    let mut builder = MessageBuilder::builder()
        .set_topic(text(request, "topic"))
        .set_body(STANDARD.decode(text(fields, "body"))?);
    if let Some(tag) = fields["tag"].as_str() {
        builder = builder.set_tag(tag);
    }
    if let Some(keys) = fields["keys"].as_str() {
        builder = builder.set_keys(keys.split(' ').collect());
    }
    let properties: HashMap<String, String> = serde_json::from_value(fields["properties"].clone())?;
    builder = builder.set_properties(properties);
    if let Some(key) = request["key"].as_str() {
        builder = builder.set_message_group(key);
    }
    if let Some(delay_ms) = request["delayMs"].as_u64() {
        // The client sends whole seconds.
        let due = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?
            + Duration::from_millis(delay_ms + 999);
        builder = builder.set_delivery_timestamp(due.as_secs() as i64);
    }
    if text(request, "how") == "transaction" {
        builder = builder.enable_transaction();
    }
    Ok(builder.build()?)
}

/// The client hands out no place in a queue.
fn result(receipt: &SendReceipt) -> Value {
    json!({"id": receipt.message_id()})
}

fn described(received: &MessageView) -> Value {
    let mut keys = received.keys().to_vec();
    keys.sort();
    json!({
        "topic": received.topic(),
        "queueId": -1,
        "offset": -1,
        "id": received.message_id(),
        "body": STANDARD.encode(received.body()),
        "tag": received.tag(),
        "keys": keys.join(" "),
        "properties": received.properties(),
        "times": received.delivery_attempt() - 1,
    })
}
