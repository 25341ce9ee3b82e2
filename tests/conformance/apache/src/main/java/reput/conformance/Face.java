package reput.conformance;

import com.alibaba.fastjson2.JSONObject;
import java.util.List;
import java.util.Map;

/** One way into an open directory. Every method writes its results as lines; {@link Main} tells the verbs. */
interface Face {
    /** Takes one line of an answer. */
    interface Lines {
        void add(Map<String, Object> line);
    }

    /** Stores {@code messages}, one by one or with {@code batch} as one batch: a line for each put. */
    void put(JSONObject request, Lines lines) throws Exception;

    /** Every queue with its lowest and its next offset. */
    void queues(Lines lines) throws Exception;

    /** Every message of a queue, in order. */
    void read(String topic, int queueId, Lines lines) throws Exception;

    /** The message of each id; the store library knows them by physical offset. */
    void byId(String topic, List<String> ids, Lines lines) throws Exception;

    /** The messages of {@code topic} and {@code key}, stored from {@code begin} to {@code end}. */
    void byKey(JSONObject request, Lines lines) throws Exception;

    /** The queue offset that each of {@code times} leads to. */
    void byTime(JSONObject request, Lines lines) throws Exception;

    /** The offset that the group has committed for a queue. */
    void committed(JSONObject request, Lines lines) throws Exception;

    /** Commits {@code offset} for a queue. */
    void commit(JSONObject request) throws Exception;

    /** What a command of {@code mqadmin} prints, given its {@code arguments}. */
    void admin(JSONObject request, Lines lines) throws Exception;

    /** Stops in order. */
    void close() throws Exception;
}
