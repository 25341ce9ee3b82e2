'use strict';

// RocketMQ's gRPC client for Node as a driver of the interop suite: `node grpc.js ADDRESS`, where the address is a
// proxy's.

const { ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer } = require('rocketmq-client-nodejs');
const { FilterType, TransactionResolution } =
  require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');
const { each, handler, logger, run } = require('./lines');

const AWAIT_MS = 5000;
const INVISIBLE_MS = 60 * 1000;
const AGAIN_AFTER_MS = 1000;
const common = {
  endpoints: process.argv[2],
  namespace: '',
  requestTimeout: 30 * 1000,
  // By GRPC_DEFAULT_SSL_ROOTS_FILE_PATH gRPC has the authority.
  sslEnabled: Boolean(process.env.INTEROP_CA),
  logger,
  ...(process.env.INTEROP_USER ? {
    sessionCredentials: { accessKey: process.env.INTEROP_USER, accessSecret: process.env.INTEROP_SECRET },
  } : {}),
};
const producers = new Map();
const stops = new Map();

/** The producer of a topic, which it names to the proxy when it starts. */
function producer(topic) {
  if (!producers.has(topic)) {
    const made = new Producer({ ...common, topic, checker: { check: async () => TransactionResolution.COMMIT } });
    producers.set(topic, made.startup().then(() => made));
  }
  return producers.get(topic);
}

function messageOf(request, fields) {
  return {
    topic: request.topic,
    body: Buffer.from(fields.body, 'base64'),
    properties: new Map(Object.entries(fields.properties)),
    ...(fields.tag ? { tag: fields.tag } : {}),
    ...(fields.keys ? { keys: fields.keys.split(' ') } : {}),
    ...(request.key ? { messageGroup: request.key } : {}),
    ...(request.delayMs ? { delay: request.delayMs } : {}),
    ...('priority' in request ? { priority: request.priority } : {}),
  };
}

function resultOf(receipt) {
  return { id: receipt.messageId, offset: receipt.offset, recallHandle: receipt.recallHandle };
}

async function recall(request) {
  await (await producer(request.topic)).recallMessage(request.topic, request.handle);
  return true;
}

async function produce(request) {
  const sender = await producer(request.topic);
  const messages = request.messages.map(fields => messageOf(request, fields));
  if (request.how === 'async') {
    return (await Promise.all(messages.map(message => sender.send(message)))).map(resultOf);
  }
  if (request.how === 'transaction') {
    return each(messages, async message => {
      const transaction = sender.beginTransaction();
      const result = resultOf(await sender.send(message, transaction));
      // What is neither is left for the check.
      const decision = message.properties.get('decision');
      if (decision === 'commit') {
        await transaction.commit();
      } else if (decision === 'rollback') {
        await transaction.rollback();
      }
      return result;
    });
  }
  return each(messages, async message => resultOf(await sender.send(message)));
}

async function consume(request) {
  const wanted = request.sql ? new FilterExpression(request.sql, FilterType.SQL) : request.tags || '*';
  const options = { ...common, consumerGroup: request.group, subscriptions: new Map([[request.topic, wanted]]) };
  const handle = handler(request);
  if (request.how === 'simple') {
    const consumer = new SimpleConsumer({ ...options, awaitDuration: AWAIT_MS });
    await consumer.startup();
    receive(consumer, handle);
    stops.set(request.consumer, consumer);
  } else {
    const consume = message => (handle(described(message)) ? ConsumeResult.SUCCESS : ConsumeResult.FAILURE);
    const consumer = new PushConsumer({ ...options, messageListener: { consume } });
    await consumer.startup();
    stops.set(request.consumer, consumer);
  }
  return true;
}

/** Handle what a simple consumer receives, until it has ended. */
async function receive(consumer, handle) {
  while (consumer.isRunning()) {
    try {
      for (const message of await consumer.receive(16, INVISIBLE_MS)) {
        if (handle(described(message))) {
          await consumer.ack(message);
        } else {
          await consumer.changeInvisibleDuration(message, AGAIN_AFTER_MS);
        }
      }
    } catch (error) {
      console.error(error);
      await new Promise(resolve => setTimeout(resolve, 100));
    }
  }
}

function described(message) {
  return {
    topic: message.topic,
    // A gRPC client gets no place in a queue.
    queueId: -1,
    offset: -1,
    id: message.messageId,
    body: message.body.toString('base64'),
    tag: message.tag || null,
    keys: [...message.keys].sort().join(' '),
    properties: Object.fromEntries(message.properties),
    times: message.deliveryAttempt - 1,
  };
}

/** Begin to end a consumer, which takes as long as its open requests. */
async function stop(request) {
  stops.get(request.consumer).shutdown().catch(error => console.error(error));
  return true;
}

run({ produce, recall, consume, stop });
