'use strict';

// The lines of JSON of interop/client.py, which drive one of the Node clients.

const readline = require('readline');

function say(line) {
  process.stdout.write(JSON.stringify(line) + '\n');
}

/** Carry out requests side by side by functions named in `verbs`, until the end of stdin, which ends the process. */
function run(verbs) {
  // Stdout is for lines of JSON.
  console.log = console.info = console.error;
  const lines = readline.createInterface({ input: process.stdin });
  lines.on('line', async line => {
    const request = JSON.parse(line);
    try {
      say({ id: request.id, ok: await verbs[request.do](request) });
    } catch (error) {
      console.error(error);
      say({ id: request.id, error: String(error) });
    }
  });
  lines.on('close', () => process.exit(0));
  process.on('unhandledRejection', error => console.error(error));
  say({ event: 'ready' });
}

/**
 * A function that writes what the consumer of a request receives, and returns whether a delivery succeeds: the first
 * ones of each message fail, as many as the request names.
 */
function handler(request) {
  const seen = new Map();
  return message => {
    say({ event: 'received', consumer: request.consumer, message });
    seen.set(message.body, (seen.get(message.body) || 0) + 1);
    return seen.get(message.body) > (request.fail || 0);
  };
}

/** Call a function with each item, one after the other, and return the results. */
async function each(items, call) {
  const results = [];
  for (const item of items) {
    results.push(await call(item));
  }
  return results;
}

// Of a logger of either client.
const logger = { debug() {}, info() {}, warn: console.error, error: console.error };

module.exports = { run, handler, each, logger };
