package reput.conformance;

import org.apache.rocketmq.store.config.FlushDiskType;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/** What the caller decides: the directory, the geometry of its files, addresses, and the client's consumer group. */
public final class Settings {
    public String dir;
    /** Where the log lies, several directories with commas between them; below `dir` if empty. */
    public String commitLogDirs = "";
    public String readOnlyCommitLogDirs = "";
    public int commitLogFileSize;
    public int consumeQueueEntries;
    public int indexSlots;
    public int indexEntries;
    public int port;
    public String group = "conformance";
    public boolean flushSync;
    public boolean recordCrc;
    public String storeIp = "127.0.0.1";
    /** Whether there is a timer, and the size of its log's files. */
    public boolean timerWheel;
    public int timerLogFileSize = 1 << 20;
    /** ASYNC_MASTER, SYNC_MASTER or SLAVE; what a slave copies. */
    public String role = "ASYNC_MASTER";
    public int brokerId;
    public int haPort;
    public String haMaster = "";
    /** Of a slave: the broker whose tables it takes over. */
    public String master = "";
    public int inSyncReplicas = 1;

    MessageStoreConfig storeConfig() {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(dir);
        config.setStorePathCommitLog(commitLogDirs.isEmpty() ? dir + "/commitlog" : commitLogDirs);
        if (!readOnlyCommitLogDirs.isEmpty()) {
            config.setReadOnlyCommitLogStorePaths(readOnlyCommitLogDirs);
        }
        config.setMappedFileSizeCommitLog(commitLogFileSize);
        config.setMappedFileSizeConsumeQueue(consumeQueueEntries * 20);
        config.setMaxHashSlotNum(indexSlots);
        config.setMaxIndexNum(indexEntries);
        config.setFlushDiskType(flushSync ? FlushDiskType.SYNC_FLUSH : FlushDiskType.ASYNC_FLUSH);
        config.setEnabledAppendPropCRC(recordCrc);
        config.setForceVerifyPropCRC(recordCrc);
        config.setHaListenPort(haPort);
        config.setBrokerRole(role);
        config.setInSyncReplicas(inSyncReplicas);
        config.setHaSendHeartbeatInterval(200);
        // Everything that would make files of its own or delete ours while the tests look.
        config.setTimerWheelEnable(timerWheel);
        config.setMappedFileSizeTimerLog(timerLogFileSize);
        config.setDiskMaxUsedSpaceRatio(99);
        config.setCleanFileForciblyEnable(false);
        config.setFileReservedTime(24 * 365 * 100);
        return config;
    }
}
