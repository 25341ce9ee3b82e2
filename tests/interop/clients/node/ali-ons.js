'use strict';

// The client ali-ons as a driver of the interop suite: `node ali-ons.js ADDRESS`.

const { Consumer, Message, Producer } = require('ali-ons');
const { each, handler, logger, run } = require('./lines');

const address = process.argv[2];
const TIMEOUT_MS = 60 * 1000;
const common = {
  httpclient: { request: async () => { throw new Error('the client looks for no other addresses'); } },
  nameSrv: address,
  namesrvAddr: address,
  logger,
  // The addresses of this machine are none of the suite's business.
  clientIP: '127.0.0.1',
  ...(process.env.INTEROP_USER
    ? { accessKey: process.env.INTEROP_USER, secretKey: process.env.INTEROP_SECRET } : {}),
};
const consumers = new Map();
let producing;

function producer() {
  if (!producing) {
    producing = (async () => {
      const made = new Producer({ ...common, producerGroup: 'interop-node', sendMsgTimeout: TIMEOUT_MS });
      made.on('error', error => console.error(error));
      await made.ready();
      return made;
    })();
  }
  return producing;
}

function messageOf(request, fields) {
  const message = new Message(request.topic, fields.tag, Buffer.from(fields.body, 'base64'));
  if (!fields.tag) {
    // The constructor's null would be sent as a text.
    delete message.properties.TAGS;
  }
  if (fields.keys) {
    message.keys = fields.keys.split(' ');
  }
  Object.assign(message.properties, fields.properties);
  if (request.delayLevel) {
    message.delayTimeLevel = request.delayLevel;
  }
  if (request.how === 'orderly') {
    message.shardingKey = request.key;
  }
  return message;
}

function resultOf(sent) {
  if (sent.sendStatus !== 'SEND_OK') {
    throw new Error(`not stored: ${JSON.stringify(sent)}`);
  }
  return { id: sent.msgId, queueId: Number(sent.messageQueue.queueId), offset: sent.queueOffset };
}

async function produce(request) {
  const sender = await producer();
  const messages = request.messages.map(fields => messageOf(request, fields));
  if (request.how === 'async') {
    return (await Promise.all(messages.map(message => sender.send(message)))).map(resultOf);
  }
  return each(messages, async message => resultOf(await sender.send(message)));
}

async function consume(request) {
  const consumer = new Consumer({
    ...common,
    consumerGroup: request.group,
    instanceName: request.consumer,
    consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
    isBroadcast: request.how === 'broadcasting',
    ...(request.maxTimes ? { maxReconsumeTimes: request.maxTimes } : {}),
  });
  consumer.on('error', error => console.error(error));
  const expression = request.sql ? { expressionType: 'SQL92', subString: request.sql } : request.tags || '*';
  const handle = handler(request);
  consumer.subscribe(request.topic, expression, async message => {
    if (!handle(described(message))) {
      // Not ACTION_RETRY, which the client takes for a success of a message that is redelivered.
      throw new Error('this delivery is to fail');
    }
  });
  consumers.set(request.consumer, consumer);
  await consumer.ready();
  return true;
}

function described(message) {
  return {
    topic: message.topic,
    queueId: message.queueId,
    offset: message.queueOffset,
    id: message.properties.UNIQ_KEY || message.msgId,
    body: message.body ? message.body.toString('base64') : '',
    tag: message.tags || null,
    keys: message.keys || null,
    properties: message.properties,
    times: message.reconsumeTimes,
  };
}

async function stop(request) {
  await consumers.get(request.consumer).close();
  return true;
}

run({ produce, consume, stop });
