// The newest snapshot of each model and the cluster events of a federation, read from Kafka without shoal.
// npm install kafkajs @msgpack/msgpack; node reader.js 127.0.0.1:9092 plant
const { Kafka, logLevel } = require("kafkajs");
const { decode, ExtensionCodec } = require("@msgpack/msgpack");

// An array: type of its elements (3 characters), dimensions (1 byte), sizes (8 bytes each), elements.
const KINDS = { "<f4": Float32Array, "<f8": Float64Array, "<i4": Int32Array, "<i8": BigInt64Array, "<u8": BigUint64Array, "|b1": Uint8Array, "|u1": Uint8Array };
const extensionCodec = new ExtensionCodec();
extensionCodec.register({ type: 1, encode: () => null, decode(data) {
  const view = new DataView(data.buffer, data.byteOffset), kind = String.fromCharCode(...data.subarray(0, 3));
  const shape = Array.from({ length: data[3] }, (_, i) => Number(view.getBigUint64(4 + 8 * i, true)));
  return { shape, values: new KINDS[kind](Uint8Array.from(data.subarray(4 + 8 * data[3])).buffer) };
} });

const [broker, federation] = process.argv.slice(2);
const kafka = new Kafka({ brokers: [broker], logLevel: logLevel.ERROR });
const consumer = kafka.consumer({ groupId: `reader-${process.pid}` }), newest = new Map();
let last = Date.now();
const eachMessage = async ({ message: { key, value, headers } }) => {
  last = Date.now();
  if (`${headers.v}` !== "1") return;
  if (`${headers.type}` === "cluster_event") console.log(JSON.parse(value).text);
  if (`${headers.type}` === "snapshot") newest.set(`${key}`, decode(value, { extensionCodec }));
};
(async () => {
  await consumer.connect();
  await consumer.subscribe({ topics: [`${federation}.snapshots`, `${federation}.events`], fromBeginning: true });
  consumer.on(consumer.events.GROUP_JOIN, () => (last = Date.now()));
  await consumer.run({ eachMessage });
  while (Date.now() - last < 5000) await new Promise((resolve) => setTimeout(resolve, 100));
  await consumer.disconnect();
  for (const { model, version, arrays } of newest.values()) {
    const shapes = Object.keys(arrays).sort().map((name) => `"${name}": [${arrays[name].shape.join(", ")}]`);
    console.log(`${model} version ${version} {${shapes.join(", ")}}`);
  }
})();
